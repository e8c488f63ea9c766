"""Launches kernels and times each until told to stop: ``python -m tests.gpu.neighbour GROUND``.

Says ``ready``; each line on stdin ends a period, whose figures are one JSON object on stdout; the
end of stdin ends the process. Runs in: a process of its own, as another engine on the same GPU.
"""

from __future__ import annotations

import json
import select
import sys
import time

from tests.gpu.ground import finish, ground_for


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all is not above, in µs."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e6, 1)


def main(arguments: list[str]) -> None:
    """Launches one kernel after the other."""
    ground = ground_for(arguments[0])
    stream = ground.stream()
    own = ground.device.borrow_stream(stream)
    ground.tick(stream)
    finish(ground.device, own)
    print("ready", flush=True)
    launches: list[float] = []
    done: list[float] = []
    while True:
        begun_s = time.perf_counter()
        ground.tick(stream)
        launches.append(time.perf_counter() - begun_s)
        finish(ground.device, own)
        done.append(time.perf_counter() - begun_s)
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        if not sys.stdin.readline():
            return
        figures = {
            "launches": len(launches),
            "launch_p50_us": percentile(launches, 0.5),
            "launch_p99_us": percentile(launches, 0.99),
            "launch_max_us": percentile(launches, 1.0),
            "done_p50_us": percentile(done, 0.5),
            "done_max_us": percentile(done, 1.0),
        }
        print(json.dumps(figures), flush=True)
        launches.clear()
        done.clear()


if __name__ == "__main__":
    main(sys.argv[1:])
