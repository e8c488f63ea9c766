"""No rule that cannot fail: for each, a connector that breaks it and one that does not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.weights import TINY, write_model_dir  # noqa: E402
from adapter.conformance.kit import bench as benches  # noqa: E402
from adapter.conformance.kit import checks_saves  # noqa: E402
from adapter.conformance.kit.bench import Bench, Target  # noqa: E402
from adapter.conformance.kit.command import check  # noqa: E402
from adapter.conformance.kit.rules import RULES, Rule  # noqa: E402
from adapter.conformance.kit.verdict import Outcome  # noqa: E402
from adapter.conformance.schedules.service import Service, serving  # noqa: E402
from tests.adapter.conformance.kit import breakers  # noqa: E402

pytestmark = pytest.mark.torch

#: Text of the rule to the class that breaks it.
BREACHES = {
    "offers whole blocks and leaves one token": "Greedy",
    "offers nothing behind a match inside a block": "Ragged",
    "what is offered stays loadable": "Bound",
    "writes only the load range": "Painter",
    "writes behind M": "Hasty",
    "saves only what was computed": "Eager",
    "saves generated blocks and later chunks": "Deaf",
    "loads are idempotent; stale or no metadata is fine": "Fragile",
    "keeps pages once, gives them back once": "Hoarding",
    "never publishes a recycled page": "Late",
    "never blocks the executor": "Slow",
    "forgets requests by itself": "Counting",
    "needs no layer hooks": "Hooked",
    "offers nothing without block reuse": "Careless",
    "answers a repeated query alike": "Fickle",
    "metadata pickles, and is small": "Heavy",
    "keeps salts and adapters apart": "Leaky",
    "raises nothing when its server dies": "Loud",
    "saves behind a ragged match": "Narrow",
    "comes up without a server": "Demanding",
    "supports attention data parallelism": "Old",
    "answers equal those without a cache": "Bit",
}
NEVER_SEEN = {"sets the device in its own threads"}

BY_TEXT = {rule.text: rule for rule in RULES}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as one:
        yield one


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    # A broken connector leaves something to wait for; a sound one is done long before.
    monkeypatch.setattr(benches, "SETTLE_S", 3.0)
    monkeypatch.setattr(checks_saves, "SETTLE_S", 3.0)


def _bench(name: str, model: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> Bench:
    kinds = {}
    for kind in ("Scheduler", "Worker"):
        kinds[kind] = f"{name}{kind}" if hasattr(breakers, f"{name}{kind}") else f"Sound{kind}"
    target = Target(breakers.__name__, kinds["Scheduler"], kinds["Worker"], service.url)
    # Each bench a dictionary of its own, under the name of the server that some breakers ask for.
    from tests.adapter.conformance.host import connectors

    monkeypatch.setattr(connectors, "STORES", {})
    return Bench(target, model, service)


def test_every_rule_has_its_breach() -> None:
    assert set(BREACHES) == set(BY_TEXT) - NEVER_SEEN


@pytest.mark.parametrize("rule", [BY_TEXT[text] for text in BREACHES], ids=lambda r: r.text)
def test_a_breach_is_seen(
    rule: Rule, model: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _bench(BREACHES[rule.text], model, service, monkeypatch)
    try:
        verdict = check(rule, bench)
    finally:
        if service.child.process.poll() is not None:
            service.restart()
    assert verdict.outcome is Outcome.BROKEN, verdict.evidence


@pytest.mark.parametrize("rule", [BY_TEXT[text] for text in BREACHES], ids=lambda r: r.text)
def test_a_sound_connector_is_not_blamed(
    rule: Rule, model: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = check(rule, _bench("Sound", model, service, monkeypatch))
    assert verdict.outcome is not Outcome.BROKEN, verdict.evidence


def test_an_engine_that_dies_breaks_the_rule_it_died_of(
    model: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(bench: Bench) -> object:
        raise RuntimeError(f"of {uuid.uuid4()}")

    verdict = check(
        Rule("§0", "none", dies),  # type: ignore[arg-type]
        _bench("Sound", model, service, monkeypatch),
    )
    assert verdict.outcome is Outcome.BROKEN
    assert "did not survive" in verdict.evidence
