"""An engine that works until it is killed: ``python -m tests.gpu.victim GROUND URL FOLDER``.

Its prompts follow from numbers from 0 on, so that whoever comes after it knows what it computed. It
says ``saving`` once the first prompt is held by the server. Runs in: a process of its own.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.adapter.enginerig import SIZE
from tests.adapter.hostlike import tokens
from tests.gpu.ground import ground_for
from tests.gpu.rig import DeviceRig, PoolKind

KIND = PoolKind(page_bytes=256 << 10)
PROMPT_TOKENS = 32 * SIZE + 1
NUM_PAGES = 192


def prompt(number: int) -> list[int]:
    """The prompt of that number."""
    return tokens(PROMPT_TOKENS, seed=1_000 + number)


def main(arguments: list[str]) -> None:
    """Works for ever; every second prompt is an earlier one."""
    name, url, folder = arguments
    ground = ground_for(name)
    rig = DeviceRig(url, Path(folder), ground, KIND, num_pages=NUM_PAGES).register()
    rig.run_saved(prompt(0))
    print("saving", flush=True)
    rng, number = random.Random(0), 1
    while True:
        rig.run_saved(prompt(number))
        rig.run_saved(prompt(rng.randrange(number)))
        number += 1


if __name__ == "__main__":
    main(sys.argv[1:])
