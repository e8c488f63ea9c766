"""An engine is asked, cancelled and looked at in the same way, whatever it runs in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.service import Service, serving
from adapter.conformance.schedules.setups import opened, setup_of
from adapter.conformance.schedules.subject import RankedSubject, Subject
from adapter.conformance.schedules.sweep import join

pytestmark = pytest.mark.torch

PROMPT = tuple(range(1, 50))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as one:
        yield one


@pytest.fixture(scope="module", params=["E2-v1-1", "E3-v2_one-adp2"])
def subject(
    request: pytest.FixtureRequest, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    epoch, layout, ranks = request.param.split("-")
    setup = setup_of(Combination(epoch, "plain", layout, "sync", ranks))
    with opened(setup, tmp_path_factory.mktemp("models"), service.url) as one:
        join(one, setup)
        yield one


def test_what_one_asked_the_next_finds(subject: Subject) -> None:
    first = subject.submit(Ask(PROMPT, 2)).result(60)
    subject.forget_reuse(20)
    again = subject.submit(Ask(PROMPT, 2)).result(60)
    assert (first.num_loaded_tokens, again.num_loaded_tokens) == (0, 48)
    assert first.tokens == again.tokens
    other = subject.submit(Ask(PROMPT, 2, cache_salt="x")).result(60)
    assert other.num_loaded_tokens == 0


def test_further_words_reach_the_host(subject: Subject) -> None:
    tokens = subject.submit(Ask(PROMPT, 3)).result(60).tokens
    stopped = subject.submit(Ask(PROMPT, 3, stop_ids=frozenset(tokens[:1]))).result(60)
    assert stopped.tokens == tokens[:1]
    assert len(subject.submit(Ask(PROMPT, 3, context_only=True)).result(60).tokens) == 1


def test_a_cancelled_request_says_so(subject: Subject) -> None:
    handle = subject.submit(Ask((1, 2, 3), 60))
    subject.cancel(handle)
    with pytest.raises(RequestCancelledError):
        handle.result(60)


def test_every_rank_shows_what_it_holds(subject: Subject) -> None:
    subject.forget_reuse(20)
    looks = subject.look()
    assert len(looks) == (2 if isinstance(subject, RankedSubject) else 1)
    for look in looks:
        assert look.free_pages == look.num_pages > 0
        assert look.died_of == ""
        assert look.server["sessions"] == len(looks)
        assert look.adapter["queries"] > 0


def test_without_a_connector_there_is_nothing_to_show(tmp_path: Path) -> None:
    setup = setup_of(Combination("E2", "plain", "v1", "sync", "1"))
    with opened(setup, tmp_path, None) as one:
        (look,) = one.look()
    assert (look.adapter, look.server) == ({}, {})


def test_a_server_that_is_gone_shows_nothing(tmp_path: Path) -> None:
    setup = setup_of(Combination("E2", "plain", "v1", "sync", "1"))
    with serving() as own, opened(setup, tmp_path, own.url) as one:
        join(one, setup)
        own.kill()
        (look,) = one.look()
    assert look.server == {}
