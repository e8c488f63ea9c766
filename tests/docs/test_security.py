"""What docs/security.md names as proof is there."""

from __future__ import annotations

import re

import pytest

from tests.repository import tree

PROOFS = sorted(set(re.findall(r"`(tests/[^`]+)`", tree.text("docs/security.md"))))


def test_there_are_some() -> None:
    assert len(PROOFS) > 15


@pytest.mark.parametrize("proof", PROOFS)
def test_each_proof_is_a_test(proof: str) -> None:
    path, _, name = proof.partition("::")
    text = (tree.ROOT / path).read_text(encoding="utf-8")
    assert f"def {name or 'test_'}" in text, f"{proof} is not there"


def test_every_row_of_what_an_engine_cannot_do_has_one() -> None:
    text = tree.text("docs/security.md")
    found = re.search(r"^## What a malicious engine cannot do$(.*?)^## ", text, re.M | re.S)
    assert found is not None
    rows = [line for line in found[1].splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 8
    for row in rows:
        assert "`tests/" in row.rstrip(" |").rpartition("|")[2], row
