"""An engine process without torch: the real adapter, a host of a few lines, every page checked.

``python -m tests.e2e.rigworker '{…}'``. Says ``ready``, waits for a line so that several begin at
once, works through its prompts by seed, and says how it went as one JSON line. A loaded page that
does not hold what its tokens say ends it with an error.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.adapter.enginerig import SIZE, EngineRig
from tests.adapter.hostlike import tokens
from tests.wire.process import ROOT

POOL_PAGES = 64


@dataclass(frozen=True)
class Task:
    """What one engine does.

    Attributes:
        url: of the server.
        model: its directory.
        page_shape: layers, K and V, elements.
        seed: of prompts and their order.
        prompt_seed: engines with the same one share prompts.
        num_prompts: different prompts; each is asked again and again in random order.
        num_rounds: requests.
        num_blocks: full blocks of a prompt.
        again: whether each request is asked a second time at once.
    """

    url: str
    model: str
    page_shape: tuple[int, int, int]
    seed: int
    prompt_seed: int
    num_prompts: int
    num_rounds: int
    num_blocks: int
    again: bool = False


def work(task: Task) -> dict[str, Any]:
    """Runs the requests; asserts inside ``EngineRig.run`` check each loaded page."""
    layers, factor, elements = task.page_shape  # a list once it went through JSON
    shape = (layers, factor, elements)
    rig = EngineRig(task.url, Path(task.model), POOL_PAGES, page_shape=shape).register()
    print("ready", flush=True)
    sys.stdin.readline()
    rng = random.Random(task.seed)
    bases = [
        tokens(task.num_blocks * SIZE + 1, seed=task.prompt_seed * 1000 + n)
        for n in range(task.num_prompts)
    ]
    counts = dict.fromkeys(("requests", "offered_tokens", "full_again", "kept", "saved_twice"), 0)
    began_s = time.monotonic()
    for _ in range(task.num_rounds):
        prompt = bases[rng.randrange(task.num_prompts)]
        prompt = prompt[: rng.randrange(2, task.num_blocks + 1) * SIZE + 1]
        outcome = rig.run_saved(prompt)
        counts["requests"] += 1
        counts["offered_tokens"] += outcome.offered
        counts["kept"] += outcome.kept
        if task.again:
            counts["full_again"] += rig.run_saved(prompt).offered == len(prompt) - 1
    counts["saved_twice"] = len(rig.saved) - len(set(rig.saved))
    counts |= {"held_pages": rig.worker.counters()["held_pages"]}
    result = {**counts, "seconds": time.monotonic() - began_s, "counters": rig.worker.counters()}
    rig.close()
    return result


def write_sized_model(folder: Path, head_dim: int) -> Path:
    """A model directory for pages of 2 layers, K and V, 2 heads, 4 tokens, ``head_dim``."""
    folder.mkdir(parents=True)
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    (folder / "config.json").write_text(json.dumps({**config, "head_dim": head_dim}))
    (folder / "model.safetensors").write_bytes(str(folder).encode())
    return folder


def page_shape(head_dim: int) -> tuple[int, int, int]:
    """Pool page of such a model."""
    return 2, 2, 2 * SIZE * head_dim


class RigProcess:
    """One such process."""

    def __init__(self, task: Task) -> None:
        environ = {
            **os.environ,
            "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "1000",
            "TRTLLM_KVKEEP_HELD_PAGES_PERCENT": "50",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.rigworker", json.dumps(asdict(task))],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> RigProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_ready(self) -> None:
        """Waits until it has registered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(self.process.communicate()[1][-3000:])

    def begin(self) -> None:
        """Lets it work."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self, limit_s: float = 90.0) -> dict[str, Any]:
        """Waits for its end."""
        out, err = self.process.communicate(timeout=limit_s)
        assert self.process.returncode == 0, err[-3000:]
        result: dict[str, Any] = json.loads(out)
        return result


def run_together(tasks: list[Task]) -> list[dict[str, Any]]:
    """Starts all, lets them begin at once, and waits for all."""
    processes = [RigProcess(task) for task in tasks]
    try:
        for process in processes:
            process.wait_ready()
        for process in processes:
            process.begin()
        return [process.result() for process in processes]
    finally:
        for process in processes:
            process.__exit__()


if __name__ == "__main__":
    assert np.little_endian
    print(json.dumps(work(Task(**json.loads(sys.argv[1])))))
