"""Cases are told apart."""

from __future__ import annotations

from adapter.conformance.coverage.refused import REFUSED


def test_names_and_tests_are_unique() -> None:
    assert len({case.name for case in REFUSED}) == len(REFUSED)
    assert all(case.test.endswith(f"[{case.name}]") for case in REFUSED)
