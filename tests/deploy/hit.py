"""An engine whose connector a preset names: how many tokens it loads of a prompt it has seen.

``python tests/deploy/hit.py PRESET FOLDER [URL]`` prints the number, in an environment that has
kvkeep and its preset installed; the tests import it. Knows the conformance host. Runs in the
engine's process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.weights import TINY, write_model_dir
from server.cli.presetcheck import PRESETS

PROMPT = range(1, 71)
WHOLE_BLOCKS = 64
_WAIT_S = 60.0
_ROUNDS = 100


def loaded_tokens(preset: str, folder: Path, url: str | None = None) -> int:
    """Tokens that a second run of the prompt loads; more runs where the server comes late.

    Args:
        preset: which.
        folder: for the model.
        url: of the server, or None for where the preset looks.
    """
    module, scheduler, worker = PRESETS[preset]
    args = LlmArgs(
        write_model_dir(folder / "model", TINY),
        KvCacheConfig(enable_partial_reuse=False),
        KvCacheConnectorConfig(None, module, scheduler, worker, url),
    )
    with HostEngine(args, num_blocks=64) as engine:
        for _ in range(_ROUNDS):
            result = engine.submit(PROMPT, max_new_tokens=2).result(_WAIT_S)
            if result.num_loaded_tokens:
                return result.num_loaded_tokens
            engine.forget_reuse(_WAIT_S)
    return 0


if __name__ == "__main__":
    print(loaded_tokens(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:4]))
