"""Prompts in a file: their chunks get the keys that an engine gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.keys import BlockHashChain, ReuseScope, chunk_key_blob
from server.prompts import read_keys

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
