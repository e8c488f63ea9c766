"""A server with lower tiers, as a process: it serves with them, without them, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server import asking
from tests.wire.process import ROOT, ServerProcess, is_alive, wait_until

SECRET = "hunter2-of-the-tests"


def figures(server: ServerProcess) -> dict[str, int]:
    return asking.stats(server.side_path, 10)


def porter_of(server: ServerProcess, name: str) -> int:
    """Waits until a tier's porter runs; its process."""
    key = f"tier_{name}_porter_pid"
    assert wait_until(lambda: figures(server)[key] > 0, every_s=0.1)
    return figures(server)[key]


def disk(folder: Path, more: str = "") -> str:
    return f"disk:{folder}/l2?size=32M{more}"


def test_it_says_which_tiers_there_are_and_takes_them_down_with_it(
    short_dir: Path, shm_dir: Path
) -> None:
    (short_dir / "b").mkdir()
    urls = ("--l2", disk(short_dir), "--l2", disk(short_dir / "b", "&policy=none"))
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M", *urls) as server:
        assert "tiers L1 > disk > disk2," in server.line
        pids = [porter_of(server, name) for name in ("disk", "disk2")]
        assert wait_until(lambda: figures(server)["tier_disk_up"] == 1, every_s=0.1)
        assert server.terminate() == 0
        assert not any(map(is_alive, pids))
        assert "did not end" not in server.log()


def test_a_killed_porter_is_replaced_and_the_server_serves_on(
    short_dir: Path, shm_dir: Path
) -> None:
    with ServerProcess(
        short_dir, shm_dir / "a", "--l1-size", "64M", "--l2", disk(short_dir)
    ) as server:
        pid = porter_of(server, "disk")
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: figures(server)["tier_disk_porters_lost"] == 1, every_s=0.1)
        assert porter_of(server, "disk") != pid
        assert wait_until(lambda: figures(server)["tier_disk_up"] == 1, every_s=0.1)
        assert figures(server)["complaint_porter_lost"] == 1


def test_porters_die_with_a_killed_server(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(
        short_dir, shm_dir / "a", "--l1-size", "64M", "--l2", disk(short_dir)
    ) as server:
        pid = porter_of(server, "disk")
        server.kill()
        assert wait_until(lambda: not is_alive(pid))


def test_without_its_tier_it_serves_and_says_why(short_dir: Path, shm_dir: Path) -> None:
    (short_dir / "l2").write_text("no folder")
    with ServerProcess(
        short_dir, shm_dir / "a", "--l1-size", "64M", "--l2", disk(short_dir)
    ) as server:
        assert wait_until(lambda: figures(server)["tier_disk_open_refused"] > 0, every_s=0.1)
        assert figures(server)["tier_disk_up"] == 0
        assert "tier_refused: the tier disk cannot be used: " in server.log()
        (short_dir / "l2").unlink()
        assert wait_until(lambda: figures(server)["tier_disk_up"] == 1, every_s=0.1)


def test_no_secret_is_in_a_process_list_or_the_log(short_dir: Path, shm_dir: Path) -> None:
    secret = short_dir / "valkey"
    secret.write_text(f"username=me\npassword={SECRET}\n")
    secret.chmod(0o600)
    url = f"valkey://127.0.0.1:1?credentials={secret}"
    arguments = ("--l1-size", "64M", "--log-level", "DEBUG", "--l2", url)
    environ = {"AWS_SECRET_ACCESS_KEY": SECRET, "KVKEEP_VALKEY_PASSWORD": SECRET}
    with ServerProcess(short_dir, shm_dir / "a", *arguments, environ=environ) as server:
        seen: set[bytes] = set()

        def has_ended_or_runs() -> bool:
            for pid in server.children():
                try:
                    seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
                except OSError:
                    continue
            told = figures(server)
            return told["tier_valkey_open_refused"] > 1 or told["tier_valkey_porter_pid"] > 0

        assert wait_until(has_ended_or_runs, every_s=0.05)
        assert any(b"server.porter.main" in line for line in seen)
        assert not any(SECRET.encode() in line for line in seen)
        assert server.terminate() == 0
        assert SECRET not in server.log()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("disk:/x", "l2: disk: size is missing"),
        ("floppy:/x", "l2: there is no kind 'floppy': expected a URL such as disk:/path"),
        ("", "l2: expected a URL such as disk:/path?size=200G, and not an empty one"),
        (f"valkey://me:{SECRET}@h:1", "has no place in the URL"),
    ],
)
def test_a_tier_that_makes_no_sense_is_told_in_one_line(
    short_dir: Path, url: str, told: str
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "server", "launch"),
            *("--endpoint", f"ipc://{short_dir}/s", "--l2", url),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stderr
