"""A server, an engine that saved some prompts, and the files that name them.

Knows the wire; used by the tests of commands that ask about prompts. Runs in the pytest process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from protocol.keys import BlockHashChain, ReuseScope
from protocol.namespace import fingerprint
from server.cli import cli
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess

BLOCK = 32
SYSTEM = list(range(1, 2 * BLOCK + 1))
FIRST = [*SYSTEM, *range(1000, 1000 + 3 * BLOCK + 5)]
SECOND = [*SYSTEM, *range(2000, 2000 + 2 * BLOCK)]
"""Two prompts that begin alike: five whole chunks and a rest, and four."""


def keys_of(tokens: list[int], salt: str | None = None) -> list[bytes]:
    """Keys of a prompt's whole chunks."""
    chain = BlockHashChain.start(ReuseScope(cache_salt=salt), BLOCK)
    chain.extend(tokens)
    return [bytes(chain.key(block)) for block in range(chain.num_blocks)]


@dataclass
class Cached:
    """What is there.

    Attributes:
        server: it runs.
        engine: registered; it saved FIRST and SECOND.
        folder: for files of tokens.
    """

    server: ServerProcess
    engine: Engine
    folder: Path

    @property
    def name(self) -> str:
        """The fingerprint's digits."""
        return fingerprint(self.engine.namespace).hex()

    def file(self, *prompts: list[int]) -> str:
        """A file of prompts."""
        path = self.folder / f"prompts-{len(list(self.folder.iterdir()))}"
        path.write_text("".join(f"{json.dumps(tokens)}\n" for tokens in prompts))
        return str(path)

    def run(self, command: str, *arguments: str) -> Result:
        """A command, asking this server."""
        return CliRunner().invoke(cli, [command, "--endpoint", self.server.url, *arguments])

    def told(self, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a command says as JSON."""
        result = self.run(command, "--json", *arguments)
        assert result.exit_code == code, result.output
        found = json.loads(result.output)
        assert isinstance(found, dict)
        return found


@contextmanager
def cached(short_dir: Path, shm_dir: Path, *options: str) -> Iterator[Cached]:
    """A server and an engine that saved two prompts.

    Args:
        short_dir: of its sockets.
        shm_dir: of its arena.
        options: more of the server.
    """
    more = ("--l1-size", "64M", *options) if options else ()
    with (
        ServerProcess(short_dir, shm_dir / "a", *more) as server,
        Engine(server.url, server.side_path, make_namespace()) as engine,
    ):
        engine.register()
        for tokens in (FIRST, SECOND):
            keys = keys_of(tokens)
            assert engine.save(keys, list(range(len(keys)))) == len(keys)
        (short_dir / "files").mkdir()
        yield Cached(server, engine, short_dir / "files")
