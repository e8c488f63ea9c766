"""The bench runs the connector it was given, beside engines that have none."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.weights import LATENT
from adapter.conformance.kit.bench import BLOCK, Bench, Probe, Target, same, text
from adapter.conformance.kit.classes import ClassError
from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker
from tests.adapter.conformance.kit import breakers
from tests.adapter.conformance.kit.breaching import Kit

pytestmark = pytest.mark.torch


def test_what_is_stored_is_offered_and_logged(kit: Kit) -> None:
    bench, prompt = kit.bench("Sound"), text(2 * BLOCK + 1, seed=1)
    with bench.engine() as seen:
        first = seen.store(prompt, 2)
        mark = seen.log.mark()
        again = seen.ask(prompt, 2)
        ((_, match, offered),) = seen.offers(mark)
    assert (first.num_loaded_tokens, again.num_loaded_tokens) == (0, 2 * BLOCK)
    assert (match, offered) == (0, 2 * BLOCK)
    assert same(again, bench.expected(prompt, 2))
    assert not same(again, bench.expected([*prompt[:-1], prompt[-1] ^ 1], 2))


def test_a_probe_acts_once_at_its_point(kit: Kit) -> None:
    probe, points = Probe(), []
    with kit.bench("Sound").engine(HostOptions(probe=probe)) as seen:
        probe.once("launched", lambda: points.append(seen.host.stats().num_forwards))
        seen.ask(text(BLOCK, seed=2), 4)
    assert points == [1]
    assert probe.seen == ["launched"]


def test_queued_work_runs_in_order(kit: Kit) -> None:
    order: list[int] = []
    with kit.bench("Sound").engine() as seen:
        seen.queue_forward_work(lambda: order.append(1))
        seen.host.device.main.enqueue(lambda: order.append(2))
        seen.settle_streams()
    assert order == [1, 2]


def test_another_model_lies_beside_the_benchs_own(kit: Kit) -> None:
    bench, prompt = kit.bench("Sound"), text(BLOCK, seed=3)
    one, other = bench.expected(prompt, 2), bench.expected(prompt, 2, LATENT)
    assert not same(one, other)
    assert same(other, bench.expected(prompt, 2, LATENT))
    assert {path.parent for path in kit.model.parent.glob("*/config.json")} >= {kit.model}


def test_what_classes_say_of_themselves(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kit.bench("Sound").opted_into_attention_dp() == (True, True)
    assert kit.bench("Old").opted_into_attention_dp() == (False, True)
    assert kit.bench("Kvkeep").takes_layer_groups()
    assert not kit.bench("Sound").takes_layer_groups()
    assert kit.bench("Sound").takes_layouts()
    names = ("reserve_prefix", "request_finished"), ("get_finished", "get_finished_prefix_loads")
    assert kit.bench("Partial").methods(*names) == {
        *("reserve_prefix", "request_finished", "get_finished")
    }
    # The base classes of a host that knows of them have all of them: that is nobody's own.
    for base, name in ((KvCacheConnectorScheduler, names[0]), (KvCacheConnectorWorker, names[1])):
        for method in name:
            monkeypatch.setattr(base, method, lambda *_: None, raising=False)
    assert kit.bench("Folder").methods(("reserve_prefix",), names[1][1:]) == set()
    assert kit.bench("Partial").methods(("reserve_prefix",), names[1][1:]) == {"reserve_prefix"}


def test_whose_server_it_is_decides_how_schedules_look_for_leaks(kit: Kit) -> None:
    ours = Target(
        "adapter.connector", "KvkeepConnectorScheduler", "KvkeepConnectorWorker", "ipc:///a"
    )
    own, others = (Bench(ours, kit.model, server) for server in (kit.service, None))
    assert (own.sweep_url, own.sweep_connector) == ("ipc:///a", None)
    assert others.sweep_url is None
    assert others.sweep_connector is not None
    assert others.sweep_connector.server_url == "ipc:///a"


def test_a_load_is_noticed(kit: Kit) -> None:
    bench, prompt = kit.bench("Sound"), text(BLOCK + 1, seed=4)
    with bench.engine() as seen:
        seen.store(prompt)
        assert not bench.has_loaded
        seen.ask(prompt)
    assert bench.has_loaded


def test_classes_that_are_not_there_are_refused(kit: Kit) -> None:
    for module, lacks in (("no.such", "'no'"), (breakers.__name__, "'Nobody'")):
        with pytest.raises(ClassError, match=f"no such connector.*{lacks}"):
            Bench(Target(module, "Nobody", "SoundWorker", None), kit.model, None)
