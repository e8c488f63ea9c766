"""A descriptor is closed by its last owner and never used after."""

import os
import threading

import pytest

from server.shell.descriptors import Descriptor


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_last_owner_closes_it() -> None:
    descriptor = Descriptor(os.memfd_create("x"))
    assert descriptor.borrow() is descriptor
    descriptor.give_back()
    assert descriptor.is_open()
    assert is_open(descriptor.fd)
    descriptor.give_back()
    assert not is_open(descriptor.fd)


def test_nobody_borrows_or_gives_back_what_is_closed() -> None:
    descriptor = Descriptor(os.memfd_create("x"))
    descriptor.give_back()
    with pytest.raises(ValueError, match="closed already"):
        descriptor.borrow()
    with pytest.raises(ValueError, match="closed already"):
        descriptor.give_back()


def test_threads_may_share_it() -> None:
    descriptor = Descriptor(os.memfd_create("x"))

    def work() -> None:
        for _ in range(2000):
            descriptor.borrow().give_back()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_open(descriptor.fd)
    descriptor.give_back()
    assert not is_open(descriptor.fd)
