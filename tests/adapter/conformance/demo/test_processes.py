import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.conformance.demo.processes import Child, DemoError, Stage, own_environment, stage

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


@pytest.fixture
def on() -> Iterator[Stage]:
    with stage(1 << 20) as made:
        yield made


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_a_child_is_spoken_to_by_lines(on: Stage) -> None:
    child = Child(on, "echo", ["-c", ECHO])
    child.send("a")
    child.send("b")
    assert [child.read_line(10), child.read_line(10)] == ["heard a", "heard b"]
    assert child.stop() == -signal.SIGTERM


def test_kill_9_is_told_from_other_ends(on: Stage) -> None:
    alive = Child(on, "alive", ["-c", ECHO])
    assert alive.kill_9()
    gone = Child(on, "gone", ["-c", "raise SystemExit(3)"])
    gone.process.wait(10)
    assert not gone.kill_9()
    with pytest.raises(DemoError, match=r"gone .* takes no orders \(exit code 3\)"):
        gone.send("x" * 100_000)


def test_a_silent_child_and_a_dead_one_are_named(on: Stage) -> None:
    silent = Child(on, "silent", ["-c", ECHO])
    with pytest.raises(DemoError, match=r"silent .* said nothing for 0 s \(still running\)"):
        silent.read_line(0.05)
    dead = Child(on, "dead", ["-c", "import sys; sys.exit('it broke')"])
    with pytest.raises(DemoError, match=r"dead .* ended \(exit code 1\)"):
        dead.read_line(10)
    assert "--- dead.log\nit broke" in on.log_tails(5)


def test_a_child_that_ignores_sigterm_is_ended_all_the_same(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.conformance.demo.processes._STOP_S", 0.2)
    code = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1)\n{ECHO}"
    child = Child(on, "stubborn", ["-uc", code])
    child.read_line(10)
    assert child.stop() == -signal.SIGKILL


def test_nothing_is_left_when_the_run_fails() -> None:
    seen: list[int] = []
    folders: list[Path] = []

    def run() -> None:
        with stage(1 << 20) as on:
            folders.extend([on.folder, on.arena_dir.parent])
            assert all(folder.is_dir() for folder in folders)
            seen.append(Child(on, "left", ["-c", ECHO]).pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not [folder for folder in folders if folder.exists()]
    assert not Path(f"/proc/{seen[0]}").exists()


def test_children_end_with_a_demo_that_was_killed() -> None:
    code = (
        "from adapter.conformance.demo.processes import Child, stage\n"
        "with stage(1 << 20) as on:\n"
        f"    child = Child(on, 'orphan', ['-c', {ECHO!r}])\n"
        "    print(child.pid, on.folder, on.arena_dir.parent, flush=True)\n"
        "    child.process.wait()\n"
    )
    demo = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    pid, *folders = demo.stdout.readline().split()
    demo.kill()
    demo.wait()
    demo.stdout.close()
    wait_until_gone(int(pid))
    for folder in folders:  # kill -9 leaves nobody to do this
        for path in Path(folder).glob("*"):
            path.unlink()
        Path(folder).rmdir()


def test_settings_of_the_user_do_not_reach_children(on: Stage) -> None:
    given = {"KVKEEP_L1_SIZE": "1T", "LMCACHE_SERVER_URL": "", "TRTLLM_KVKEEP_X": "1", "HOME": "/h"}
    assert own_environment(given) == {"HOME": "/h"}
    # The devices that a whole test runs on are its children's as well.
    shared = {"KVKEEP_SIMULATED_CUDA": "/d", "KVKEEP_SIMULATED_CUDA_SEED": "1"}
    assert own_environment(given | shared) == {"HOME": "/h", **shared}
    code = "import os; print(sorted(n for n in os.environ if 'KVKEEP' in n))"
    child = Child(on, "env", ["-c", code], {"KVKEEP_LOG_LEVEL": "INFO"})
    assert child.read_line(10) == "['KVKEEP_LOG_LEVEL']"


def test_no_room_is_said_in_one_line() -> None:
    told = "the demo needs 1099511627776 MiB free in /dev/shm or"
    with pytest.raises(DemoError, match=told), stage(1 << 60):
        raise AssertionError("there is no such machine")
    assert not list(Path(tempfile.gettempdir()).glob(f"kvkeep-demo-{os.getpid()}-*"))
