"""P01: between offer and load the server dies, stops, or loses its files; the load is exact.

``tests/e2e/test_faults.py`` shows the same to the bit of the logits; here it runs without torch.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.wire.process import ServerProcess


@pytest.mark.parametrize("accident", ["kill -9", "SIGTERM", "SIGSTOP", "rm", "kill -9 and rm"])
def test_p01_what_was_offered_is_loaded_without_the_server(
    own_server: ServerProcess, tmp_path: Path, accident: str
) -> None:
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(30, seed=9)
    rig.run_saved(prompt)
    request, offered, pages = rig.begin(prompt)
    assert offered == 28
    if accident.startswith("kill"):
        own_server.kill()
    elif accident == "SIGTERM":
        assert own_server.terminate() == 0
    elif accident == "SIGSTOP":
        os.kill(own_server.pid, signal.SIGSTOP)
    if accident.endswith("rm"):
        shutil.rmtree(own_server.arena_dir)
    try:
        checked = []

        def forward() -> None:
            rig.check(prompt, pages, offered // SIZE)
            checked.append(True)

        report = Report(request.request_id, prompt, pages, 0, len(prompt) - offered)
        rig.iterate(Output([report]), forward=forward)
        assert checked == [True]
        request.tokens.append(1)
        rig.scheduler.request_finished(request, pages)
        for seed in range(20, 24):  # and the engine goes on, never in the way
            rig.run(tokens(30, seed=seed))
    finally:
        if accident == "SIGSTOP":
            os.kill(own_server.pid, signal.SIGCONT)
        rig.close()
