"""No rule that cannot fail: each has a connector that breaks it, tested beside its check."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit import rules
from adapter.conformance.kit.bench import Bench
from adapter.conformance.kit.command import check
from adapter.conformance.kit.rules import RULES, Rule
from adapter.conformance.kit.serverchild import ServerError
from adapter.conformance.kit.verdict import NO_SERVER, Outcome, Verdict, broken, held, unseen
from tests.adapter.conformance.kit import breaching
from tests.adapter.conformance.kit.breaching import Kit

pytestmark = pytest.mark.torch


MODULES = (
    *("offers", "loads", "saves", "hooks", "layouts", "device"),
    *("epochs", "identity", "pools", "ranks", "suite"),
)


def test_every_rule_has_its_breach() -> None:
    assert set(breaching.ALL) == set(breaching.BY_TEXT)
    assert len(breaching.BY_TEXT) == len(RULES)


@pytest.mark.parametrize("name", MODULES)
def test_breaches_are_tested_beside_the_check(name: str) -> None:
    module = getattr(rules, f"checks_{name}")
    mine = {rule.text for rule in RULES if rule.check.__module__ == module.__name__}
    assert mine == set(getattr(breaching, name.upper()))
    assert (Path(__file__).parent / f"test_checks_{name}.py").is_file()


@pytest.mark.parametrize(
    ("found", "has_loaded", "was_in_vain", "count"),
    [
        (unseen("something of the moment"), False, False, 3),
        (unseen("something of the moment"), True, True, 3),
        (unseen("something of the moment"), False, True, 1),
        (unseen(NO_SERVER), True, False, 1),
        (held("it"), True, False, 1),
        (broken("it"), True, False, 1),
    ],
)
def test_only_what_another_try_may_change_is_tried_again(
    found: Verdict, has_loaded: bool, was_in_vain: bool, count: int, kit: Kit
) -> None:
    bench, tries = kit.bench("Sound"), list[Bench]()
    bench.has_loaded, bench.was_in_vain = has_loaded, was_in_vain

    def looks(bench: Bench) -> Verdict:
        tries.append(bench)
        return found

    assert check(Rule("§0", "none", looks), bench) == found
    assert len(tries) == count
    assert bench.was_in_vain is (was_in_vain or (count == 3 and not has_loaded))


def test_an_engine_that_dies_breaks_the_rule_it_died_of(kit: Kit) -> None:
    def dies(bench: Bench) -> object:
        raise RuntimeError(f"of {uuid.uuid4()}")

    verdict = check(Rule("§0", "none", dies), kit.bench("Sound"))  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.BROKEN
    assert "did not survive" in verdict.evidence


def test_a_server_that_does_not_come_up_again_is_nobodys_breach(kit: Kit) -> None:
    def restarts(bench: Bench) -> object:
        raise ServerError("'it' ended with code 1")

    verdict = check(Rule("§0", "none", restarts), kit.bench("Sound"))  # type: ignore[arg-type]
    assert verdict == unseen("the server could not be started again: 'it' ended with code 1")


def test_a_server_is_back_after_a_breach(kit: Kit) -> None:
    rule = breaching.BY_TEXT["raises nothing when its server dies"]
    assert check(rule, kit.bench("Loud")).outcome is Outcome.BROKEN
    assert kit.service.child.process.poll() is None, "the rules that follow have no server"
