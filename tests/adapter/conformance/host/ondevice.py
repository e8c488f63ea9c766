"""Whole folders of tests on another device than host memory, where the environment asks for it."""

import os
import random
from collections.abc import Iterator

from adapter.conformance.host.options import default_device
from adapter.pages import find_pool
from protocol.device.backends import device_of

SEED = int(os.environ.get("KV_SCHEDULE_SEED", str(random.SystemRandom().randrange(1 << 30))))


def default_machine() -> Iterator[None]:
    """For a session fixture: makes the device that hosts use by default, if it is simulated."""
    if default_device() == "host":
        yield
        return
    from adapter.conformance.host.simulated import simulating

    with simulating(SEED):
        print(f"KV_SCHEDULE_SEED={SEED}")
        yield


def pool_bytes(address: int) -> int | None:
    """Length of the living pool that an address lies in, on whatever device; None for none."""
    device = device_of("cpu", address)
    if device is not None:
        place = device.place(address)
        return None if place is None else place.num_bytes
    pool = find_pool(address, 1)
    return None if pool is None else pool.num_bytes
