"""Bays of one page-locked buffer: apart from each other, taken and given back."""

from __future__ import annotations

import pytest

from protocol.device.interface import Device
from server.copier.bounce import Bounce

BAY = 64 * 1024


def test_bays_share_no_byte_and_come_back(device: Device) -> None:
    bounce = Bounce(device, 4 * BAY, BAY)
    bays = [bounce.take() for _ in range(4)]
    assert bounce.num_free == 0
    with pytest.raises(IndexError):
        bounce.take()
    for number, bay in enumerate(bays):
        view = bounce.view(bay)
        assert view.size == BAY
        assert view.ctypes.data == bounce.address(bay)
        view[:] = number
    for number, bay in enumerate(bays):
        assert (bounce.view(bay) == number).all()
        bounce.give_back(bay)
    assert bounce.take() == bays[-1]  # the warmest
    bounce.close()


def test_it_is_page_locked_until_it_is_closed(device: Device) -> None:
    bounce = Bounce(device, 2 * BAY, BAY)
    address = bounce.address(1)
    assert device.place(address) is not None
    bounce.close()
    assert device.place(address) is None
