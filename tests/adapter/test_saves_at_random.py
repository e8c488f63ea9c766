"""Whatever a server answers, and whenever the host falls silent: no save waits for ever."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.saveflow import PROOF_S
from adapter.savelane import DEFER_FIRST_S, MAX_DEFERRALS
from protocol.messages import StopReason
from tests.adapter.savehost import SaveHost
from tests.adapter.saveserver import Copy, SaveServer

STOPS: Final = [reason for reason in StopReason if reason is not StopReason.NONE]
TURN_S: Final = 0.05
LONGEST_S: Final = PROOF_S + DEFER_FIRST_S * 2**MAX_DEFERRALS + 2.0
"""A copy whose request is never heard of again, behind a STORE that was put off till the last."""


class GrudgingServer(SaveServer):
    """Refuses some, stops short at some, publishes less than it was asked, and may be lost."""

    def _begin(self, copy: Copy) -> None:
        draw = self.rng.random()
        if draw < 0.1:
            self._answer(copy, 0, self.rng.choice(STOPS))
        elif draw < 0.15:
            self._drop(copy)
            self.flow.failed(copy.order.key, copy.order.group, self.now_s)
        else:
            super()._begin(copy)

    def settle(self) -> None:
        for it in self.flow.next_settlements(self.now_s):
            copy = self.copied.pop(it.store)
            draw = self.rng.random()
            if draw < 0.1:
                self.flow.failed(it.key, it.group, self.now_s)
                continue
            count = self.rng.randrange(it.count) if it.count and draw < 0.3 else it.count
            if count:
                self._publish(copy, count)
            stop = StopReason.NONE if count == it.count else self.rng.choice(STOPS)
            self.flow.settled(it.key, it.group, count, stop, self.now_s)

    def lose(self) -> None:
        """Another server takes its place."""
        for copy in (*self.copies, *self.staging):
            self._drop(copy)
        self.copied.clear()
        self.published.clear()
        self.flow.server_lost(self.now_s)

    def _drop(self, copy: Copy) -> None:
        (self.copies if copy in self.copies else self.staging).remove(copy)
        if self.ledger.ring is not None and copy.order.lot is not None:
            self.ledger.ring.give_back(copy.order.lot)


def play(seed: int, chunk: int, windows: tuple[int, ...], staging: str) -> SaveHost:
    """Some iterations with such a server, then none any more."""
    ring_chunks = 0 if staging == "none" else 2 + seed % 4
    host = SaveHost(seed, chunk, 24, windows, ring_chunks, by_layer=staging == "layers")
    server = GrudgingServer(host.rng, host.ledger, host.layers, host.contents, chunk)
    host.server = server
    for _ in range(40 + seed % 100):
        host.step()
        if host.rng.random() < 0.01:
            server.lose()
    while host.stream:
        host.run_layer()
    return host


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    chunk=st.integers(1, 2),
    windows=st.sampled_from([(0,), (0, 9), (13, 0), (12,), (0, 17, 9)]),
    staging=st.sampled_from(["none", "ring", "layers"]),
)
def test_an_engine_that_falls_silent_leaves_no_save_waiting(
    seed: int, chunk: int, windows: tuple[int, ...], staging: str
) -> None:
    host = play(seed, chunk, windows, staging)
    server, ledger = host.server, host.ledger
    end_s = server.now_s + LONGEST_S
    while ledger.has_work:
        assert server.now_s < end_s, [vars(entry) for entry in ledger.busy()]
        server.flow.expire(server.now_s)
        server.serve()
        server.settle()
        server.check_ring()
        server.now_s += TURN_S
    host.collect()
    host.finish_all()


@pytest.mark.parametrize("windows", [(0,), (0, 17)])
def test_the_grudging_server_is_one(windows: tuple[int, ...]) -> None:
    counts: dict[str, int] = {}
    for seed in range(12):
        for name, count in play(seed, 1, windows, "none").ledger.counts.items():
            counts[name] = counts.get(name, 0) + count
    for name in ("chunks_saved", "saves_stopped_refused", "saves_dropped_server_lost"):
        assert counts.get(name), (name, counts)
