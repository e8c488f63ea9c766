"""Prompts in a file: their chunks get the keys that an engine gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.keys import BlockHashChain, ReuseScope, chunk_key_blob
from server import prompts
from server.prompts import read_keys
from tests.wire.process import ROOT

TOKENS = list(range(1000, 1070))


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prompts"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("salt", [None, "tenant"])
@pytest.mark.parametrize("chunk_blocks", [1, 2])
def test_they_are_those_of_an_engine(tmp_path: Path, salt: str | None, chunk_blocks: int) -> None:
    path = written(tmp_path, f"{TOKENS}\n\n[1, 2]\n{TOKENS[:40]}\n")
    chain = BlockHashChain.start(ReuseScope(cache_salt=salt), 16)
    chain.extend(TOKENS)
    whole = chunk_key_blob(bytes(chain.keys), chunk_blocks)
    assert len(whole) == 16 * (4 // chunk_blocks)
    # A prompt without one whole block has nothing to load.
    assert read_keys(path, 16, chunk_blocks, salt) == [whole, whole[: 16 * (2 // chunk_blocks)]]


@pytest.mark.parametrize(
    "line", ["{}", "[1, 2", '["a"]', "[1.5]", "[true]", "[4294967296]", "[" * 9999]
)
def test_a_line_that_is_no_list_of_ids_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="tokens="):
        read_keys(written(tmp_path, f"[1]\n{line}\n"), 1, 1, None)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="that can be read"):
        read_keys(str(tmp_path / "absent"), 1, 1, None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="that can be read"):
        read_keys(str(tmp_path / "bytes"), 1, 1, None)


LIMITED = """
import resource, sys
from protocol.errors import ConfigError
from server.prompts import read_keys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    read_keys(sys.argv[1], 16, 1, None)
except ConfigError as error:
    print(error.message)
"""


def refused_with_little_memory(path: str) -> str:
    """What a process of its own says, which a limit ends if it reads on and on."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    assert "a regular file" in refused_with_little_memory("/dev/zero")
    endless = tmp_path / "zeros"
    with endless.open("wb") as file:
        file.truncate(8 << 30)  # takes no room
    assert "at most 16 MiB in a line; line 1 has more" in refused_with_little_memory(str(endless))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "a regular file" in refused_with_little_memory(str(tmp_path / "pipe"))


def test_a_file_beyond_its_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "[1]\n" * 3)
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 3)
    monkeypatch.setattr(prompts, "MAX_FILE_BYTES", 12)
    assert len(read_keys(path, 1, 1, None)) == 3
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 2)
    with pytest.raises(ConfigError, match="at most 2 lines"):
        read_keys(path, 1, 1, None)
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 3)
    monkeypatch.setattr(prompts, "MAX_FILE_BYTES", 11)
    with pytest.raises(ConfigError, match="at most 11 bytes in all"):
        read_keys(path, 1, 1, None)
