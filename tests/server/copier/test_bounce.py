"""Slots of one page-locked buffer: apart from each other, taken and given back."""

from __future__ import annotations

import pytest

from protocol.device.interface import Device
from server.copier.bounce import Bounce

SLOT = 64 * 1024


def test_slots_share_no_byte_and_come_back(device: Device) -> None:
    bounce = Bounce(device, 4 * SLOT, SLOT)
    slots = [bounce.take() for _ in range(4)]
    assert bounce.num_free == 0
    with pytest.raises(IndexError):
        bounce.take()
    for number, slot in enumerate(slots):
        view = bounce.view(slot)
        assert view.size == SLOT
        assert view.ctypes.data == bounce.address(slot)
        view[:] = number
    for number, slot in enumerate(slots):
        assert (bounce.view(slot) == number).all()
        bounce.give_back(slot)
    assert bounce.take() == slots[-1]  # the warmest
    bounce.close()


def test_it_is_page_locked_until_it_is_closed(device: Device) -> None:
    bounce = Bounce(device, 2 * SLOT, SLOT)
    address = bounce.address(1)
    assert device.place(address) is not None
    bounce.close()
    assert device.place(address) is None
