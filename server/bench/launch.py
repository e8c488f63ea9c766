"""One server of a run: launched as an operator would, on an endpoint and an arena of its own.

Purpose: start, find its processes, stop. Must not know: what is measured. Runs in: the benchmark's
main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from server.bench import footprint
from server.bench.children import BenchError, Child, Workplace

_START_S = 30.0


class Server(Child):
    """A server under measurement.

    Attributes:
        url: its endpoint.
        arena_dir: folder of its extents.
    """

    def __init__(
        self, place: Workplace, name: str, arena_bytes: int, options: Sequence[str] = ()
    ) -> None:
        """Starts it; ``wait_ready`` says when it serves.

        Args:
            place: the run it belongs to.
            name: unique within the run.
            arena_bytes: its arena.
            options: further ones.
        """
        self.url = self.url_of(place, name)
        self.arena_dir: Path = place.shm_dir / name
        arguments = ["-m", "server", "launch", "--endpoint", self.url]
        arguments += ["--arena-dir", str(self.arena_dir), "--l1-size", str(arena_bytes)]
        arguments += ["--arena-at-exit", "remove", *options]
        super().__init__(place, name, arguments)

    @staticmethod
    def url_of(place: Workplace, name: str) -> str:
        """Endpoint of a server that is, or will be, started under a name."""
        return f"ipc://{place.runtime_dir}/{name}.sock"

    def wait_ready(self) -> str:
        """Reads the start-up line.

        Returns:
            The line.

        Raises:
            BenchError: it did not start.
        """
        return self.line(_START_S)

    def weights(self) -> list[footprint.Weight]:
        """Weighs its processes, the main one first.

        Returns:
            One weight for each.

        Raises:
            BenchError: it has ended.
        """
        try:
            return [footprint.weight_of(pid, self.arena_dir) for pid in footprint.family(self.pid)]
        except OSError as error:
            raise BenchError(f"{self.name} cannot be weighed: {error}") from error

    def heavy(self) -> list[str]:
        """Libraries that its processes should not have mapped.

        Returns:
            File names, sorted.
        """
        found: set[str] = set()
        for pid in footprint.family(self.pid):
            maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
            found.update(footprint.heavy_libraries(maps))
        return sorted(found)
