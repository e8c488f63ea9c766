"""B03: processes with different hash seeds share hits; the keys are SHA-256 over fixed bytes.

The golden vectors themselves are in ``tests/protocol/test_keys.py``; here two real engines meet.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.adapter.enginerig import write_model
from tests.wire.process import ROOT, ServerProcess

SCRIPT = """
import sys
from pathlib import Path
from tests.adapter.enginerig import EngineRig
from tests.adapter.hostlike import tokens
rig = EngineRig(sys.argv[1], Path(sys.argv[2])).register()
scope = dict(cache_salt="tenant", multimodal_hashes=[[5] * 8], multimodal_positions=[2],
             multimodal_lengths=[2])
print(rig.run_saved(tokens(22)).offered, rig.run_saved(tokens(22), **scope).offered)
rig.close()
"""


def run_with_seed(server: ServerProcess, model: Path, seed: str) -> str:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    if seed:
        environ["PYTHONHASHSEED"] = seed
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.url, str(model)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_engines_with_different_hash_seeds_share_hits(
    server: ServerProcess, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m")
    assert run_with_seed(server, model, "1") == "0 0\n"
    assert run_with_seed(server, model, "4294967295") == "20 20\n"
    assert run_with_seed(server, model, "") == "20 20\n"
