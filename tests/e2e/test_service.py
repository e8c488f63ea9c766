"""kvkeep as a system service: a user of its own, engines of other users in its group."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.wire.asuser import needs_root, run_as
from tests.wire.process import ServerProcess, wait_until

SERVICE, GROUP = 60_010, 42_042
MEMBER, OTHER_MEMBER, OUTSIDER = 60_001, 60_002, 60_003
PROMPT = tokens(22, seed=5)
FULL = 20

#: The interpreter may lie where only root may read, so that much is left to the service.
BECOME = (
    *("setpriv", f"--reuid={SERVICE}", f"--regid={GROUP}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
    "--bounding-set=-all,+dac_read_search",
)


def run_engine(url: str, model: Path, found: int = 0) -> list[Any]:
    """A whole engine: one request saved, of which so much is there already, another loaded.

    Returns:
        What both were offered, and what was said.
    """
    rig = EngineRig(url, model).register()
    try:
        offered = [rig.run_hit(PROMPT, found).offered, rig.run_hit(PROMPT, FULL).offered]
        link = rig.worker.link
        assert link is not None
        return [offered, str(link.refusal or "")]
    finally:
        rig.close()


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv was not found")
def test_engines_of_several_users_share_one_service(short_dir: Path, shm_dir: Path) -> None:
    # What systemd's RuntimeDirectory=, RuntimeDirectoryMode=0750 and a tmpfs give it.
    short_dir.chmod(0o755)
    run = short_dir / "kvkeep"
    run.mkdir(mode=0o750)
    run.chmod(0o750)
    for folder in (run, shm_dir):
        os.chown(folder, SERVICE, GROUP)
    url = f"ipc://{run}/kvkeep.sock"
    arguments = ("--l1-size", "32M", "--extent-size", "1M", "--group", str(GROUP))
    model = write_model(short_dir / "m")
    with ServerProcess(short_dir, shm_dir / "a", *arguments, url=url, prefix=BECOME) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"Uid:\t{SERVICE}\t{SERVICE}" in status
        found = (run / "kvkeep.sock.side").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (SERVICE, GROUP, 0o660)
        # Root's engine comes first, so that all is imported that the others cannot read.
        assert run_engine(url, model) == [[0, FULL], ""]
        for user in (MEMBER, OTHER_MEMBER):
            offered, refusal = run_as(lambda: run_engine(url, model, FULL), user, user, [GROUP])
            assert (offered, refusal) == ([FULL, FULL], ""), user
        offered, _ = run_as(lambda: run_engine(url, model), OUTSIDER, OUTSIDER)
        assert offered == [0, 0]  # it finds nobody there, and goes on
        assert wait_until(lambda: not list((shm_dir / "a" / "parties").glob("*.new")), 5)
        extents = list((shm_dir / "a").glob("*.extent"))
        assert extents
        assert {(path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in extents} == {
            (SERVICE, 0o400)
        }
        assert "Traceback" not in server.log()
        assert server.terminate() == 0
    assert not list(run.iterdir())


@needs_root
def test_an_engine_does_not_take_a_stranger_for_the_service(short_dir: Path, shm_dir: Path) -> None:
    """Somebody was faster: the folder is theirs, in one where anybody may make folders."""
    short_dir.chmod(0o1777)
    run = short_dir / "kvkeep"
    run.mkdir(mode=0o755)
    os.chown(run, SERVICE, GROUP)
    os.chown(shm_dir, SERVICE, GROUP)
    url = f"ipc://{run}/kvkeep.sock"
    model = write_model(short_dir / "m")
    arguments = ("--l1-size", "32M", "--group", str(GROUP))
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv was not found")
    with ServerProcess(short_dir, shm_dir / "a", *arguments, url=url, prefix=BECOME):
        offered, refusal = run_engine(url, model)
        assert offered == [0, 0]
        assert "NOT_PERMITTED" in refusal
        assert f"others than root and user {os.geteuid()} could have made {short_dir}" in refusal
