"""An engine under load in a process of its own: ``python -m tests.compat.labour URL MODEL SEED``.

It serves prompts without end through the adapter; each page that was loaded is compared with what
its tokens say, and a wrong byte ends it. For each line of its input it says as JSON how far it is;
it ends with its input. Knows the adapter and the small host of its tests.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from pathlib import Path

from protocol import messages
from tests.adapter.enginerig import SIZE, EngineRig

PROMPTS = 8
BLOCKS = 6
PAUSE_S = 0.005
SETTLE_S = 30.0


def prompts() -> list[list[int]]:
    """What every engine of a test is asked: pairs of prompts that begin alike."""
    draw = random.Random(1)

    def half() -> list[int]:
        return [draw.randrange(1000) for _ in range(SIZE * BLOCKS // 2)]

    trunks = [half() for _ in range(PROMPTS // 2)]
    return [[*trunk, *half(), 1] for trunk in trunks for _ in range(2)]


def main(url: str, model: str, seed: str) -> None:
    draw, texts = random.Random(int(seed)), prompts()
    rig = EngineRig(url, Path(model)).register()
    counts = {"minor": messages.VERSION_MINOR, "requests": 0, "offered": 0}
    while True:
        while select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                rig.close()
                return
            print(json.dumps(counts), flush=True)
        outcome = rig.run(draw.choice(texts))
        if outcome.kept:
            rig.settle(rig.next_id - 1, SETTLE_S)
        counts["requests"] += 1
        counts["offered"] += outcome.offered
        time.sleep(PAUSE_S)  # a pace


if __name__ == "__main__":
    main(*sys.argv[1:])
