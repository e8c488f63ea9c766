"""What the disk tier moves beside fio, in turns, on the same files.

    python -m tests.benchmarks.bench_disk --folder DIR [--size 8G] [--rounds 7] [--fio-jobs 4]
                                          [--threads N] [--value 4M] [--job 4M] [--layout slab]
                                          [--order random] [--encrypt] [--json PATH]

Each round writes a folder full of new values and reads them all back through what a porter runs:
jobs of parts that lie in an extent of shared memory, sealed before, checked after, on as many
threads as ``concurrency`` is without an option. fio, from the distribution's package, does the same
with bare blocks right before and after: ``ioengine=psync direct=1`` and ``--fio-jobs`` jobs, over
the tier's own segment files (``layout=files``: over files of its own beside them). A job of ours is
one value, so that either side has one buffer for each thread: fio's lie in the processor's cache,
and longer jobs (``--job 32M``) come from memory, which costs the disk's side of a virtual machine a
copy from there. What counts is the ratio. With ``--encrypt`` the tier's values are encrypted, fio's
stay what they are. A program, not a test: ``test_bench_disk`` runs it small.
The folder has to be on the disk that is meant, and is removed afterwards. It must be empty or not
be there; what a run that was killed left there is told by its mark, and removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from server.core.tiers.parts import PART_DTYPE, Status
from server.porter.jobs import Performer
from server.porter.memory import Memory
from server.porter.vault import vault_of
from server.porter.wire import Command, Kind
from server.sizes import parse_size
from server.tiers import disk
from server.tierspec import CONCURRENCY, parse

FINGERPRINT: Final = bytes(range(16))
EXTENT: Final = 1
PAGE: Final = 4096
MARK: Final = ".bench_disk"
"""File in a folder that a run made; locked while it runs."""

SHARE: Final = 0.85
"""Of the folder's size that values fill: nothing is evicted."""


@dataclass
class Figures:
    """GB/s of each round.

    Attributes:
        rates: by ``fio write``, ``put``, ``fio read`` and ``get``.
    """

    rates: dict[str, list[float]] = field(
        default_factory=lambda: {"fio write": [], "put": [], "fio read": [], "get": []}
    )

    def ratios(self, ours: str, theirs: str) -> list[float]:
        """Of each round, ours over the mean of fio before and after it."""
        before = self.rates[theirs]
        after = [*before[1:], before[-1]]
        return [
            2 * own / (one + other)
            for own, one, other in zip(self.rates[ours], before, after, strict=False)
        ]

    def document(self) -> dict[str, Any]:
        """For JSON, and the table."""
        put, get = self.ratios("put", "fio write"), self.ratios("get", "fio read")
        return {
            "gb_s": {name: [round(one, 3) for one in rates] for name, rates in self.rates.items()},
            "median_gb_s": {name: round(statistics.median(r), 3) for name, r in self.rates.items()},
            "put_to_fio": [round(one, 3) for one in put],
            "get_to_fio": [round(one, 3) for one in get],
            "median_put_to_fio": round(statistics.median(put), 3),
            "median_get_to_fio": round(statistics.median(get), 3),
        }


class Rig:
    """A tier, an extent of shared memory, and threads that work as a porter's do."""

    def __init__(
        self,
        folder: Path,
        size: int,
        threads: int,
        value: int,
        layout: str,
        is_random: bool,
        fio_jobs: int,
        job_bytes: int,
        is_encrypted: bool,
    ) -> None:
        self.is_random, self.fio_jobs = is_random, fio_jobs
        self.folder = folder
        self.threads, self.value = threads, value
        self.count = int(size * SHARE) // (value + PAGE)
        self.tier = disk.open(parse(f"disk:{folder}?size={size}&layout={layout}"))
        self.memory = Memory(self.tier)
        self.slots = max(1, job_bytes // value)
        length = PAGE + threads * self.slots * value
        self.fd = os.memfd_create("bench-disk")
        os.posix_fallocate(self.fd, 0, length)
        self.memory.map_extent(Command(Kind.MAP_EXTENT, EXTENT, length, PAGE), self.fd)
        view = np.memmap(f"/proc/self/fd/{self.fd}", np.uint64, "r+")
        view[:] = np.random.default_rng(1).integers(0, 1 << 63, len(view), np.uint64)
        with tempfile.NamedTemporaryFile("w") as keys:  # mode 0600
            keys.write(f"bench = {os.urandom(32).hex()}\n" * is_encrypted)
            keys.flush()
            vault = vault_of(self.tier, keys.name if is_encrypted else "")
        self.performer = Performer(
            self.tier, self.memory, 0, threading.Event(), lambda: None, vault=vault
        )

    def carry(self, kind: Kind, round_number: int) -> float:
        """Puts, or gets, everything once.

        Returns:
            GB/s.
        """
        jobs = iter(range(0, self.count, self.slots))
        lock, failures = threading.Lock(), []

        def work(thread: int) -> None:
            while True:
                with lock:
                    begin = next(jobs, None)
                if begin is None:
                    return
                answer = self.performer.perform(self.command(kind, thread, begin, round_number))
                if answer.error or set(answer.statuses) != {Status.OK}:
                    failures.append(answer)

        began_s = time.perf_counter()
        run_all([lambda at=at: work(at) for at in range(self.threads)])  # type: ignore[misc]
        seconds = time.perf_counter() - began_s
        if failures:
            raise click.ClickException(f"{kind.name} failed: {failures[0]}")
        return self.count * self.value / seconds / 1e9

    def command(self, kind: Kind, thread: int, begin: int, round_number: int) -> Command:
        """One job: as many values as fit into a thread's slots."""
        numbers = np.arange(begin, min(begin + self.slots, self.count))
        if kind == Kind.GET and self.is_random:
            # Slots are filled in their order; reads of many requests come in any.
            numbers = np.random.default_rng(round_number).permutation(self.count)[numbers]
        parts = np.zeros(len(numbers), PART_DTYPE)
        keys = [b"%08d%08d" % (number, round_number) for number in numbers]
        parts["key"] = np.frombuffer(b"".join(keys), "V16")
        parts["extent"] = EXTENT
        parts["offset"] = PAGE + (thread * self.slots + np.arange(len(numbers))) * self.value
        parts["length"] = parts["room"] = self.value
        return Command(kind, begin, fingerprint=FINGERPRINT, parts=parts)

    def files(self) -> list[Path]:
        """Where fio shall write and read: the segments."""
        found = sorted((self.folder / "segments").glob("*"))
        return found or [self.folder / f"fio-{number}" for number in range(self.fio_jobs)]

    def clear(self) -> None:
        """Forgets everything; returns when there is room again."""
        for path in self.folder.glob("fio-*"):
            path.unlink()
        self.tier.clear(FINGERPRINT)
        end_s = time.monotonic() + 60.0
        while self.tier.health().used_bytes > self.count * self.value // 100:
            if time.monotonic() > end_s:
                raise click.ClickException("what was cleared is still there after a minute")
            time.sleep(0.05)

    def close(self) -> None:
        self.tier.close()
        os.close(self.fd)


@contextlib.contextmanager
def folder_of_a_run(folder: Path) -> Iterator[None]:
    """Makes the folder, and removes it at the end, also after SIGTERM.

    Args:
        folder: that is not there, is empty, or is left from a run that was killed.

    Raises:
        click.ClickException: it has something else in it, or another run uses it.
    """
    mark = folder / MARK
    if folder.exists() and any(folder.iterdir()) and not mark.is_file():
        raise click.ClickException(f"{folder} is not empty; everything in it would be removed")
    folder.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another run uses {folder}") from None
        empty(folder)
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            empty(folder)
            mark.unlink()
            folder.rmdir()


def empty(folder: Path) -> None:
    """Removes all but the mark, which goes last: what is left without it would be a stranger's."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()


def run_all(targets: list[Callable[[], None]]) -> None:
    """Runs each in a thread of its own, to the end."""
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fio(rig: Rig, rw: str) -> float:
    """Runs fio over the tier's files.

    Returns:
        GB/s.
    """
    total = rig.count * rig.value
    share = total // rig.fio_jobs // rig.value * rig.value
    files = rig.files()
    size = sum(path.stat().st_size for path in files) if files[0].exists() else total
    command = [
        *("fio", "--name=kvkeep", "--ioengine=psync", "--direct=1", f"--numjobs={rig.fio_jobs}"),
        *(f"--bs={rig.value}", f"--rw={'rand' * rig.is_random}{rw}", "--group_reporting"),
        *(("--norandommap",) if rig.is_random else (f"--offset_increment={share}",)),
        *(f"--filename={':'.join(map(str, files))}", f"--size={size}", "--fallocate=none"),
        *(f"--io_size={share}", "--thread", "--output-format=json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"fio: {done.stderr.strip() or done.stdout.strip()}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][rw]
    return float(job["io_bytes"]) / (float(job["runtime"]) / 1e3) / 1e9


def measure(rig: Rig, rounds: int, told: Callable[[str], None]) -> Figures:
    """Alternates fio and the tier, after a first filling that gives every block to its file."""
    figures = Figures()
    rig.carry(Kind.PUT, 0)
    for number in range(1, rounds + 1):
        rig.clear()
        figures.rates["fio write"].append(fio(rig, "write"))
        figures.rates["put"].append(rig.carry(Kind.PUT, number))
        figures.rates["fio read"].append(fio(rig, "read"))
        figures.rates["get"].append(rig.carry(Kind.GET, number))
        told("  ".join(f"{name} {rates[-1]:6.3f}" for name, rates in figures.rates.items()))
    figures.rates["fio write"].append(fio(rig, "write"))
    figures.rates["fio read"].append(fio(rig, "read"))
    return figures


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--size", default="8G", show_default=True)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--threads", default=CONCURRENCY, show_default=True, type=click.IntRange(1, 64), help="of ours"
)
@click.option("--fio-jobs", default=4, show_default=True, type=click.IntRange(1, 64))
@click.option("--value", default="4M", show_default=True)
@click.option("--job", default="4M", show_default=True, help="of ours, at a time")
@click.option("--layout", default="slab", type=click.Choice(["slab", "files"]))
@click.option("--order", default="random", type=click.Choice(["random", "sequential"]))
@click.option("--encrypt", "is_encrypted", is_flag=True, help="the values of ours")
@click.option("--json", "path", type=click.Path(path_type=Path))
def main(
    folder: Path,
    size: str,
    rounds: int,
    threads: int,
    fio_jobs: int,
    value: str,
    job: str,
    layout: str,
    order: str,
    is_encrypted: bool,
    path: Path | None,
) -> None:
    """Measures the disk tier beside fio."""
    if shutil.which("fio") is None:
        raise click.ClickException("fio was not found: apt-get install fio, or the like")
    sizes = [
        parse_size(name, text) for name, text in (("size", size), ("value", value), ("job", job))
    ]
    is_random = order == "random"
    with folder_of_a_run(folder):
        rig = Rig(
            *(folder, sizes[0], threads, sizes[1], layout, is_random, fio_jobs, sizes[2]),
            is_encrypted,
        )
        with contextlib.closing(rig):
            figures = measure(rig, rounds, lambda line: click.echo(line, err=True))
    document = {
        "folder_bytes": sizes[0],
        "values": rig.count,
        "value_bytes": rig.value,
        "threads": threads,
        "fio_jobs": fio_jobs,
        "job_bytes": sizes[2],
        "layout": layout,
        "order": order,
        "is_encrypted": is_encrypted,
        "load_1min": os.getloadavg()[0],
        **figures.document(),
    }
    for name, rate in document["median_gb_s"].items():
        click.echo(f"{name:10} {rate:7.3f} GB/s, median of {len(figures.rates[name])}")
    click.echo(f"put / fio write  {document['median_put_to_fio']:.3f}  {document['put_to_fio']}")
    click.echo(f"get / fio read   {document['median_get_to_fio']:.3f}  {document['get_to_fio']}")
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
