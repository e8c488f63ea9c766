"""Launches kernels and times each until told to stop: ``python -m tests.gpu.neighbour GROUND``.

Says ``ready``; each line on stdin ends a period, whose figures are one JSON object on stdout; the
end of stdin ends the process. Runs in: a process of its own, as another engine on the same GPU.
"""

from __future__ import annotations

import json
import select
import sys
import time

from tests.gpu.ground import Ground, finish, ground_for


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all is not above, in µs; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e6, 1)


class Launches:
    """Kernels launched one after the other, and how long each took.

    Args:
        ground: whose device; the calling thread's alone from then on.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._stream = ground.stream()
        self._own = ground.device.borrow_stream(self._stream)
        self._launches: list[float] = []
        self._done: list[float] = []
        ground.tick(self._stream)
        finish(ground.device, self._own)

    def once(self) -> None:
        """One more."""
        begun_s = time.perf_counter()
        self._ground.tick(self._stream)
        self._launches.append(time.perf_counter() - begun_s)
        finish(self._ground.device, self._own)
        self._done.append(time.perf_counter() - begun_s)

    def take(self) -> dict[str, float]:
        """Figures since the last call; any thread may ask."""
        launches, self._launches = self._launches, []
        done, self._done = self._done, []
        return {
            "launches": len(launches),
            "launch_p50_us": percentile(launches, 0.5),
            "launch_p99_us": percentile(launches, 0.99),
            "launch_max_us": percentile(launches, 1.0),
            "done_p50_us": percentile(done, 0.5),
            "done_max_us": percentile(done, 1.0),
        }


def main(arguments: list[str]) -> None:
    """Launches one kernel after the other."""
    launches = Launches(ground_for(arguments[0]))
    print("ready", flush=True)
    while True:
        launches.once()
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        if not sys.stdin.readline():
            return
        print(json.dumps(launches.take()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
