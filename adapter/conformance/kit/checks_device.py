"""Rules about the device that an engine works on, put to the test on a simulated one.

Runs in the kit's main thread.
"""

from __future__ import annotations

import itertools
from typing import Final

from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.simulated import simulating
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.conformance.kit.verdict import Verdict, broken, held, unseen
from protocol.device.simulated.driver import current

_ENGINES: Final = ("MainThread", "executor")
"""Threads of the host, which sets the device in them itself."""

_seeds = itertools.count(700)


def sets_the_device_in_its_threads(bench: Bench) -> Verdict:
    """Rule 13: a thread begins on device 0, whatever the engine's device is.

    The pool is managed memory: a connector that knows simulated devices copies it itself then,
    whatever server it has.
    """
    prompt = text(3 * BLOCK + 1, seed=next(_seeds))
    wanted = bench.expected(prompt, 2)
    with simulating(13):
        options = HostOptions(device="simulated", private_pool=True)
        with bench.engine(options) as seen:
            seen.store(prompt, 2)
            result = seen.ask(prompt, 2)
        driver = current()
        refused = [] if driver is None else list(driver.unbound_calls)
        threads = set() if driver is None else driver.bound_threads.difference(_ENGINES)
    if refused:
        return broken(refused[0])
    if not same(result, wanted):
        return broken("logits differ with the pool on a simulated device")
    if not threads:
        return unseen(
            "no thread of the connector used the simulated device: it is kvkeep's own "
            "(protocol.device), which other connectors know nothing of"
        )
    return held(f"{', '.join(sorted(threads))} set it; {result.num_loaded_tokens} tokens loaded")
