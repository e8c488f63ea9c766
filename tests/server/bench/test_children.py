import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.bench.children import BenchError, Child, Generator, Workplace, workplace


@pytest.fixture
def place() -> Iterator[Workplace]:
    with workplace() as made:
        yield made


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pid: int, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return gone(pid)


def test_lines_arrive_whole(place: Workplace) -> None:
    script = "import sys; sys.stdout.write('one\\ntw'); sys.stdout.flush(); print('o'); input()"
    child = Child(place, "talker", ["-c", script])
    assert [child.line(20.0), child.line(20.0)] == ["one", "two"]
    child.send("")
    with pytest.raises(BenchError, match=r"talker ended early \(exit code 0\)"):
        child.line(20.0)


def test_silence_has_a_limit(place: Workplace) -> None:
    child = Child(place, "mute", ["-c", "input()"])
    with pytest.raises(BenchError, match="said nothing"):
        child.line(0.05)


def test_the_last_words_are_told(place: Workplace) -> None:
    child = Child(place, "broken", ["-c", "raise SystemExit('no memory left')"])
    with pytest.raises(BenchError, match=r"exit code 1\): no memory left"):
        child.line(20.0)


def test_an_ended_child_takes_no_order(place: Workplace) -> None:
    child = Child(place, "brief", ["-c", ""])
    child.process.wait(20.0)
    with pytest.raises(BenchError, match="took no order"):
        child.send("x" * 100_000)


def test_stop_is_firm_and_idempotent(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.bench.children._STOP_S", 0.2)
    script = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(1, flush=True); input()"
    )
    child = Child(place, "stubborn", ["-c", script])
    child.line(20.0)
    assert child.stop() == -signal.SIGKILL
    assert child.stop() == -signal.SIGKILL


def interrupted_run(seen: list[Child | Path]) -> None:
    with workplace() as place:
        child = Child(place, "waiting", ["-c", "print(1, flush=True); input()"])
        child.line(20.0)
        (place.shm_dir / "extent").write_bytes(b"x")
        seen += [child, place.runtime_dir, place.shm_dir]
        raise KeyboardInterrupt


def test_everything_goes_with_the_workplace() -> None:
    seen: list[Child | Path] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(seen)
    for one in seen:
        if isinstance(one, Child):
            assert one.process.returncode == -signal.SIGTERM
        else:
            assert not one.exists()
    assert len(seen) == 3


def test_a_killed_benchmark_takes_its_children_along() -> None:
    script = (
        "import sys, os\n"
        "from server.bench.children import Child, workplace\n"
        "with workplace() as place:\n"
        "    child = Child(place, 'waiting', ['-c', 'print(1, flush=True); input()'])\n"
        "    child.line(20.0)\n"
        "    print(child.pid, place.runtime_dir, place.shm_dir, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, *folders = parent.stdout.readline().split()
        parent.kill()
    assert wait_gone(int(pid))
    for folder in folders:  # a killed process cannot remove its folders itself
        for path in Path(folder).iterdir():
            path.unlink()
        Path(folder).rmdir()


def test_a_generator_answers_orders_and_refuses_nonsense(place: Workplace) -> None:
    generator = Generator(place, "generator")
    with pytest.raises(BenchError, match="the first order must be join"):
        generator.order("leave", 30.0)
    with pytest.raises(BenchError, match="not an order"):
        generator.order("dance", 30.0)
    assert os.environ.get("GLIBC_TUNABLES") is None, "only the child gets the tunables"
    environ = Path(f"/proc/{generator.pid}/environ").read_bytes()
    assert b"GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=0x40000" in environ


def test_what_is_no_event_is_told(place: Workplace) -> None:
    child = Generator.__new__(Generator)
    Child.__init__(child, place, "stranger", ["-c", "print('hello'); input()"])
    with pytest.raises(BenchError, match="stranger said 'hello'"):
        child.result(20.0)
