"""A server's arena outlives it: the next one serves the same bytes, whatever ended the last one.

Real processes. What the folder may hold besides is looked at file by file in
``tests/server/shell/test_adoption.py``.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protocol.messages import ChunkCountReply, Clear
from server import asking
from server.shell.memory import is_memory
from tests.server import heirs
from tests.server.heirs import CHUNKS, Kept, connect, launch, let_go, stats, try_save
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess, is_alive, wait_until

PROMPTS = range(1, 11)
ALL = len(PROMPTS) * CHUNKS


def end(server: ServerProcess, how: str) -> None:
    if how == "kill -9":
        server.kill()
    else:
        assert server.terminate() == 0


def first_life(folder: Path, arena: Path, kept: Kept, how: str, *arguments: str) -> Engine:
    """Saves every prompt; returns the engine, whose mappings stay while it is kept."""
    with launch(folder, arena, *arguments) as server:
        assert "adopted" not in server.line
        with connect(server, kept.namespace) as engine:
            assert kept.save(engine, PROMPTS) == ALL
            end(server, how)
            return engine


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_the_next_server_serves_the_same_bytes(short_dir: Path, shm_dir: Path, how: str) -> None:
    kept = Kept()
    engines, log = [first_life(short_dir, shm_dir / "a", kept, how)], ""
    for _ in range(2):
        with launch(short_dir, shm_dir / "a") as server:
            assert f"adopted {ALL} chunks in " in server.line
            with asking.connected(server.side_path, 10, "tests") as asker:
                told = asker.status(10).server
                held = asker.stats(10)["arena_held_bytes"]
            assert (told.adopted_chunks, told.adopted_bytes) == (ALL, held)
            assert 0 < told.adopted_in_s < told.started_in_s
            with connect(server) as engine:
                assert engine.hello.arena == engines[0].hello.arena
                assert kept.check(engine) == ALL
                found = stats(engine)
                assert found["adopted_chunks"] == found["chunks"] == ALL
                # This very process read the arena before and has not said Drained.
                assert found["parties_awaited"] == len(engines)
                engines.append(engine)
            log = server.log()
            end(server, how)
    assert log.count("arena_adopted") == 2
    assert "dropped" not in log


def test_two_restarts_within_a_second(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "kill -9")
    for _ in range(4):  # killed as soon as it is ready, its copier still about to start
        with launch(short_dir, shm_dir / "a") as server:
            server.kill()
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) == ALL


def test_a_kill_before_it_is_ready_loses_nothing(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM")
    command = [sys.executable, "-m", "server", "launch", "--endpoint", f"ipc://{short_dir}/s"]
    command += ["--arena-dir", str(shm_dir / "a"), *heirs.ARGUMENTS]
    for number in (signal.SIGKILL, signal.SIGTERM):
        for wait_s in (0.1, 0.15, 0.2, 0.25, 0.3):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
            time.sleep(wait_s)
            process.send_signal(number)
            process.wait(15)
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) == ALL


def test_remove_leaves_nothing_and_keep_without_content_neither(
    short_dir: Path, shm_dir: Path
) -> None:
    with launch(short_dir, shm_dir / "a") as server:
        assert server.terminate() == 0
    assert list(shm_dir.iterdir()) == []
    first_life(short_dir, shm_dir / "a", Kept(), "SIGTERM")
    left = {path.name for path in (shm_dir / "a").iterdir()}
    assert {"arena", "namespaces", "parties", "00000001.extent"} <= left
    assert "lock" not in left
    with launch(short_dir, shm_dir / "a", "--arena-at-exit", "remove") as server:
        assert "adopted" in server.line
        assert server.terminate() == 0
    assert list(shm_dir.iterdir()) == []


def test_extents_without_a_chunk_go_unless_an_engine_has_one_mapped(
    short_dir: Path, shm_dir: Path
) -> None:
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert (shm_dir / "a" / "00000001.extent").exists()
        engine.pump_while_waiting()
        assert engine.extents
        assert server.terminate() == 0
        assert (shm_dir / "a" / "00000001.extent").exists()
    let_go(engine)
    with launch(short_dir, shm_dir / "a") as server:
        with connect(server) as engine:
            assert engine.save(make_keys(1, CHUNKS), list(range(CHUNKS))) == CHUNKS
            assert engine.wire.call(Clear(), ChunkCountReply).chunks == CHUNKS
        let_go(engine)
        assert server.terminate() == 0
    assert list(shm_dir.iterdir()) == []


def test_extents_without_a_chunk_go_though_the_copier_had_to_be_killed(
    short_dir: Path, shm_dir: Path
) -> None:
    with launch(short_dir, shm_dir / "a") as server:
        with connect(server) as engine:
            (copier,) = server.children()
            assert engine.save(make_keys(1, CHUNKS), list(range(CHUNKS))) == CHUNKS
            assert engine.wire.call(Clear(), ChunkCountReply).chunks == CHUNKS
            os.kill(copier, signal.SIGSTOP)
        let_go(engine)
        assert server.terminate() == 0
        assert not is_alive(copier)
    assert list(shm_dir.iterdir()) == []


def test_the_end_of_a_server_and_its_copier_is_not_waited_for(
    short_dir: Path, shm_dir: Path
) -> None:
    with launch(short_dir, shm_dir / "a") as server:
        assert wait_until(lambda: len(server.children()) == 1)
        [copier] = server.children()

        def roles() -> list[str]:
            files = [path.read_text() for path in (shm_dir / "a" / "parties").iterdir()]
            return sorted(re.findall(r'"role":"(\w+)"', " ".join(files)))

        assert wait_until(lambda: roles() == ["copier", "server"])
        server.kill()
        assert wait_until(lambda: not is_alive(copier))
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert stats(engine)["parties_awaited"] == 0


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (("--l1-size", "128M"), ALL),
        (("--extent-size", "256K"), ALL),
        (("--extent-size", "4M"), ALL),
        (("--l1-size", "2M"), CHUNKS),
        (("--l1-size", "2M", "--extent-size", "256K"), CHUNKS),
    ],
    ids=["larger", "short extents", "long extents", "smaller", "both"],
)
def test_other_sizes_adopt_what_fits(
    short_dir: Path, shm_dir: Path, arguments: tuple[str, ...], least: int
) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM")
    with launch(short_dir, shm_dir / "a", *arguments) as server:
        with connect(server) as engine:
            hits = kept.check(engine)
            assert least <= hits <= ALL
            assert stats(engine)["arena_used_bytes"] <= stats(engine)["arena_bytes"]
            assert (hits == ALL) == ("dropped files" not in server.log())
            more = Kept(keys=dict(kept.keys), pages=dict(kept.pages))
            try_save(more, engine, 99)  # room or not, it is an answer
            more.check(engine)
        assert server.terminate() == 0
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) >= min(hits, CHUNKS)


def test_a_size_that_does_not_fit_leaves_the_arena_as_it_was(
    short_dir: Path, shm_dir: Path
) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "server", "launch", "--endpoint", f"ipc://{short_dir}/s"),
            *("--arena-dir", str(shm_dir / "a"), "--l1-size", "12T"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) == ALL


def test_what_the_arena_holds_is_no_reason_to_refuse_its_size(
    short_dir: Path, shm_dir: Path
) -> None:
    """The memory is used by the arena itself: a limit that was kept once is kept again."""
    group = short_dir / "group"
    group.mkdir()
    (group / "memory.max").write_text(f"{64 << 20}\n")
    (group / "memory.current").write_text("0\n")
    limited = ("--cgroup-root", str(group))
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM", *limited)
    used = sum(path.stat().st_size for path in (shm_dir / "a").glob("*.extent"))
    (group / "memory.current").write_text(f"{used}\n")
    with launch(short_dir, shm_dir / "a", *limited) as server, connect(server) as engine:
        assert kept.check(engine) == ALL


def test_two_namespaces_come_back_and_one_whose_file_is_lost_does_not(
    short_dir: Path, shm_dir: Path
) -> None:
    one, two = Kept(), Kept(namespace=make_namespace(model="test/other"))
    with launch(short_dir, shm_dir / "a") as server:
        for kept in (one, two):
            with connect(server, kept.namespace) as engine:
                assert kept.save(engine, range(1, 3)) == 2 * CHUNKS
        names = {path.name for path in (shm_dir / "a" / "namespaces").iterdir()}
        assert len(names) == 2
        server.kill()
    with launch(short_dir, shm_dir / "a") as server:
        for kept in (one, two):
            with connect(server, kept.namespace) as engine:
                assert kept.check(engine) == 2 * CHUNKS
        server.kill()
    lost = sorted((shm_dir / "a" / "namespaces").iterdir())[0]
    lost.write_bytes(lost.read_bytes()[:-3])
    with launch(short_dir, shm_dir / "a") as server:
        hits = []
        for kept in (one, two):
            with connect(server, kept.namespace) as engine:
                hits.append(kept.check(engine))
        assert sorted(hits) == [0, 2 * CHUNKS]
        assert wait_until(lambda: "no namespace" in server.log())


def test_spoilt_files_neither_stop_the_start_nor_are_served(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "kill -9")
    found = sorted((shm_dir / "a").glob("*.extent"))
    assert len(found) >= 4
    for path in found[:-1]:
        path.chmod(0o600)
    with open(found[0], "r+b") as file:  # another format
        file.seek(8)
        file.write(b"\2")
    with open(found[1], "r+b") as file:  # torn records: some checksums do not match any more
        for slot in range(0, 60, 3):
            file.seek(4096 + 128 * slot + 5)
            file.write(b"torn!")
    os.truncate(found[2], 100_000)
    (shm_dir / "a" / "00000077.extent").mkdir()
    (shm_dir / "a" / "00000078.extent").symlink_to("/etc/passwd")
    os.mkfifo(shm_dir / "a" / "00000079.extent")
    (shm_dir / "a" / "00000080.extent").write_bytes(os.urandom(20_000))
    (shm_dir / "a" / "parties" / ("7" * 32)).write_bytes(b"torn")
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        hits = kept.check(engine)
        assert 0 < hits < ALL
        assert stats(engine)["chunks"] >= hits
        log = server.log()
        for said in ("format version 1", "not as long", "not a regular file", "a symbolic link"):
            assert said in log
        assert "dropped records" in log
        assert kept.save(engine, range(50, 53)) == 3 * CHUNKS
        kept.check(engine)
    assert (shm_dir / "a" / "00000077.extent").is_dir()


def test_on_a_disk_the_log_says_that_the_machine_was_started_since(
    short_dir: Path, tmp_path: Path
) -> None:
    if is_memory(str(tmp_path)):
        pytest.skip("no disk here")
    kept = Kept()
    first_life(short_dir, tmp_path / "a", kept, "SIGTERM")
    (tmp_path / "a" / "boot").write_text("another\n")
    with launch(short_dir, tmp_path / "a") as server, connect(server) as engine:
        assert kept.check(engine) == 0
        assert "written before the machine's last start" in server.log()


def test_a_fault_in_taking_over_costs_the_content_and_not_the_server(
    short_dir: Path, shm_dir: Path
) -> None:
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM")
    script = (
        "import sys\n"
        "from server.core.dispatch import Core\n"
        "def fail(*arguments): raise RuntimeError('as asked')\n"
        "Core.adopt = fail\n"
        "from server.__main__ import main\n"
        "main()\n"
    )
    prefix = (sys.executable, "-c", script, "launch")
    command = [*prefix, "--endpoint", f"ipc://{short_dir}/s", "--arena-dir", str(shm_dir / "a")]
    with open(short_dir / "second.log", "wb") as log:
        process = subprocess.Popen(
            [*command, *heirs.ARGUMENTS], cwd=ROOT, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"kvkeep ready")
        url, side_path = f"ipc://{short_dir}/s", f"{short_dir}/s.side"
        with Engine(url, side_path, num_pages=CHUNKS) as engine:
            engine.register()
            engine.pump_while_waiting()
            assert kept.check(engine) == 0
            assert kept.save(engine, range(200, 203)) == 3 * CHUNKS
            assert kept.check(engine) == 3 * CHUNKS
    finally:
        process.terminate()
        process.communicate(timeout=20)
    said = (short_dir / "second.log").read_text()
    assert "adoption_fault" in said
    assert "as asked" in said
    assert "by a fault of the server's own" in said
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) == 3 * CHUNKS


def test_what_was_cleared_does_not_come_back_in_extents_that_were_to_go(
    short_dir: Path, shm_dir: Path
) -> None:
    """Freeing what does not fit takes seconds; a server that is killed meanwhile left it there."""
    kept = Kept()
    first_life(short_dir, shm_dir / "a", kept, "SIGTERM")
    script = (
        "import sys, time\n"
        "from server.shell.extents import Allocator, ExtentFile\n"
        "do = Allocator._do\n"
        "def slow(self, item):\n"
        "    time.sleep(60 if isinstance(item, ExtentFile) else 0)\n"
        "    do(self, item)\n"
        "Allocator._do = slow\n"
        "from server.__main__ import main\n"
        "main()\n"
    )
    prefix = (sys.executable, "-c", script, "launch")
    command = [*prefix, "--endpoint", f"ipc://{short_dir}/s", "--arena-dir", str(shm_dir / "a")]
    process = subprocess.Popen(
        [*command, *heirs.ARGUMENTS, "--l1-size", "2M"], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"kvkeep ready")
        with Engine(f"ipc://{short_dir}/s", f"{short_dir}/s.side", num_pages=CHUNKS) as engine:
            assert engine.wire.call(Clear(), ChunkCountReply).chunks > 0
    finally:
        process.kill()
        process.communicate(timeout=20)
    with launch(short_dir, shm_dir / "a") as server, connect(server) as engine:
        assert kept.check(engine) == 0


def unless_dead(process: subprocess.Popen[bytes]) -> None:
    """Ends the wait for an answer that cannot come any more."""
    if process.poll() is not None:
        raise ConnectionError("the server was killed")


@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_any_instant_it_loses_only_what_was_not_committed(
    short_dir: Path, shm_dir: Path, kills: int
) -> None:
    """Kills in stores and evictions; what was committed last is a hit, and nothing is wrong."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    small = ("--l1-size", "8M")
    kept, number, evicted = Kept(), 100, 0
    for _ in range(kills):
        published: list[int] = []
        with launch(short_dir, shm_dir / "a", *small) as server, connect(server) as engine:
            kept.check(engine)
            engine.wire.on_wait = lambda process=server.process: unless_dead(process)
            timer = threading.Timer(chance.uniform(0.02, 0.6), server.process.kill)
            timer.start()
            try:
                while True:
                    number += 1
                    kept.fill(engine, number)
                    held = engine.save(kept.keys[number], list(range(CHUNKS)))
                    assert held == CHUNKS  # nobody else has anything, so old ones make room
                    published.append(number)
                    evicted = stats(engine).get("evicted_chunks", 0) or evicted
            except (TimeoutError, ConnectionError, OSError):
                pass
            timer.join()
            server.process.wait(15)
            let_go(engine)
        with launch(short_dir, shm_dir / "a", *small) as server, connect(server) as engine:
            kept.check(engine)
            assert stats(engine)["parties_awaited"] == 0
            last = Kept(
                keys={one: kept.keys[one] for one in published[-3:]},
                pages={one: kept.pages[one] for one in published[-3:]},
            )
            assert last.check(engine) == CHUNKS * len(last.keys)
            server.kill()
            let_go(engine)
    assert evicted > 0
