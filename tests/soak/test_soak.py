"""Twelve seconds of the soak; thirty minutes are a step of ``make slow``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.soak.run import soak


def test_a_sample_of_the_soak(build_dir: Path) -> None:
    done = soak(12, 64, 7, minute_s=3)
    document = done.document()
    (build_dir / "soak-sample.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    assert {claim for claim, held in document["claims"].items() if not held} == set(), document
    assert len(document["minutes"]) >= 4
    assert all(one["lookups"] > 64 for one in document["minutes"][:4])
