import os
import signal
import subprocess
import sys
from pathlib import Path

from protocol.device.simulated import ledger

CHILD = """
import sys, time
from pathlib import Path
from protocol.device.simulated import ledger
folder = Path(sys.argv[1])
held = [ledger.enter(folder, 0)]
if len(sys.argv) > 2:
    held.append(ledger.join(folder, 0, bytes.fromhex(sys.argv[2])))
else:
    held.append(ledger.allocate(folder, 0, 4096))
print(held[1] and held[1].token.hex(), flush=True)
time.sleep(60)
"""


def child(*words: str) -> tuple[subprocess.Popen[str], str]:
    started = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    return started, started.stdout.readline().strip()


def kill(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGKILL)
    started.wait(10)
    assert started.stdout is not None
    started.stdout.close()


def test_what_is_held_is_counted_until_released(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = ledger.allocate(tmp_path, 0, 8192)
    context = ledger.enter(tmp_path, 0)
    other = ledger.allocate(tmp_path, 1, 4096)
    assert ledger.census(tmp_path, 0) == ledger.Census(8192, 0, 1)
    assert ledger.census(tmp_path, 1) == ledger.Census(4096, 0, 0)
    for holding in (held, context, other):
        holding.release()
        holding.release()
    assert ledger.census(tmp_path, 0) == ledger.Census(0, 0, 0)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_opened_by_another_outlives_its_owners_free(tmp_path: Path) -> None:
    held = ledger.allocate(tmp_path, 0, 8192)
    joined = ledger.join(tmp_path, 0, held.token)
    assert joined is not None
    assert joined.num_bytes == 8192
    held.retire()
    assert ledger.join(tmp_path, 0, held.token) is None
    assert ledger.census(tmp_path, 0) == ledger.Census(0, 8192, 0)
    joined.release()
    assert list(tmp_path.iterdir()) == []


def test_memory_of_a_killed_process_goes_with_the_last_who_opened_it(tmp_path: Path) -> None:
    owner, token = child(str(tmp_path))
    joined = ledger.join(tmp_path, 0, bytes.fromhex(token))
    assert joined is not None
    assert ledger.census(tmp_path, 0) == ledger.Census(4096, 0, 1)
    kill(owner)
    assert ledger.census(tmp_path, 0) == ledger.Census(4096, 0, 0)
    joined.release()
    assert ledger.census(tmp_path, 0) == ledger.Census(0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_opener_gives_its_hold_back(tmp_path: Path) -> None:
    held = ledger.allocate(tmp_path, 0, 4096)
    opener, token = child(str(tmp_path), held.token.hex())
    assert token == held.token.hex()
    held.retire()
    assert ledger.census(tmp_path, 0) == ledger.Census(0, 4096, 1)
    kill(opener)
    assert ledger.census(tmp_path, 0) == ledger.Census(0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_maker_left_half_made_is_swept_when_old(tmp_path: Path) -> None:
    young, old = tmp_path / "making-00-aa", tmp_path / "making-00-bb"
    young.touch()
    old.touch()
    os.utime(old, (1, 1))
    ledger.census(tmp_path, 0)
    assert list(tmp_path.iterdir()) == [young]
