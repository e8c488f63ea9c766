"""The test's grip on faults inside a real copier, see ``tests/faults/injected``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wire.process import ROOT, ServerProcess


class CopierFaults:
    """Arms faults of one server's copiers.

    Args:
        folder: where they look; emptied by nobody else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        """For the server."""
        # The tree too: where kvkeep is not installed, it is found only after such modules have run.
        path = os.pathsep.join((str(ROOT / "tests" / "faults" / "injected"), str(ROOT)))
        rest = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": f"{path}{os.pathsep}{rest}" if rest else path,
            "KVT_COPIER": str(self.folder),
        }

    def arm(self, command: str, when: str, action: str) -> None:
        """Has the next such command meet a fault: a signal's name, LINGER, or seconds to sleep."""
        hidden = self.folder / ".armed"
        hidden.write_text(action, encoding="ascii")
        hidden.rename(self.folder / f"{command}.{when}")

    def is_armed(self, command: str, when: str) -> bool:
        """Whether it has not happened yet."""
        return (self.folder / f"{command}.{when}").exists()

    @contextmanager
    def pace(self, part_s: float) -> Iterator[None]:
        """Copies take so long for each page in this block; one under way notices at its next."""
        path = self.folder / "copy.pace"
        path.write_text(str(part_s), encoding="ascii")
        try:
            yield
        finally:
            path.unlink()


@contextmanager
def faulty_server(
    folder: Path, arena_dir: Path, *sizes: str, commit_s: float = 0
) -> Iterator[tuple[ServerProcess, CopierFaults]]:
    """A server whose copiers meet the faults that the test arms.

    Args:
        folder: as for ``ServerProcess``.
        arena_dir: likewise.
        sizes: further arguments of the server.
        commit_s: how long a STORE may await its COMMIT, instead of a minute.
    """
    faults = CopierFaults(folder / "faults")
    environ = faults.environ
    if commit_s:
        environ["KVT_COMMIT_S"] = str(commit_s)
    with ServerProcess(folder, arena_dir, *sizes, environ=environ) as server:
        yield server, faults
