"""The connector's scheduler side: what to promise, what to load, what to keep.

Nothing raises out of these hooks, for that would kill the engine's loop: what fails is a miss or a
dropped save, counted and logged once per kind. The one exception is told to the worker, which
raises it where the host expects it: tokens that were promised and cannot be loaded.

Must not know: pages' bytes, streams. Runs in: the executor's thread (construction and
``wait_for_initialization`` in others). Source: host contract §3, §5, §10.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from adapter.allotment import groups_of, why_misfit
from adapter.engine import LOGGER, Engine, Running, engine_for
from adapter.facts import facts_of
from adapter.loadmode import LoadMode
from adapter.metadata import ConnectorMetadata
from adapter.naming import last_word
from adapter.offers import Answer, IterationBudget, OfferDesk
from adapter.promises import load_window, why_lost
from adapter.reports import build_metadata, without_saves
from adapter.requests import RequestTable
from adapter.requeststate import RequestState
from adapter.trtllm_api import KvCacheConnectorScheduler, keeps_offers
from protocol.logline import NOTHING, About, extra

INITIALIZATION_S: Final = 2.0
"""Longest wait for the first registration at bring-up; the engine starts uncached without it."""

_NO_PARTIAL_REUSE: Final = (
    "kvkeep: a prompt's device match ended inside a block, so nothing is loaded for it; set "
    "kv_cache_config.enable_partial_reuse=False to have such prompts loaded"
)


class KvkeepConnectorScheduler(KvCacheConnectorScheduler):
    """Answers the host's scheduler from the node's kvkeep server.

    Attributes:
        supports_attention_dp: one of these runs on every rank then, each an engine of its own.
    """

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        """Reads the settings and meets the worker.

        Args:
            llm_args: the engine's arguments.

        Raises:
            ConfigError: a setting is wrong; the engine does not start.
        """
        super().__init__(llm_args)
        self._engine: Engine = engine_for(llm_args, "scheduler", self)
        self._budget = IterationBudget(self._engine.settings.query_budget_s)
        self._running: Running | None = None
        self._table: RequestTable | None = None
        self._desk: OfferDesk | None = None
        self._iteration = 1
        self._partial_match_in = 0
        self._said_partial = False
        self._broken_promise = ""

    # --- hooks ---

    def wait_for_initialization(self) -> None:
        """Gives the first registration a moment, so that the first requests are cached."""
        try:
            running = self._ready()
            if running is None or self._desk is None:
                return
            if running.link.wait_joined(INITIALIZATION_S) is not None:
                self._desk.connect(INITIALIZATION_S)
                return
            url = self._engine.settings.server.url
            why = running.link.refusal or f"not registered at {url} yet"
            LOGGER.warning("kvkeep: starting uncached: %s", why)
        except Exception as error:  # noqa: BLE001 - the engine starts uncached
            self._swallowed("initialization", error)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Tokens promised beyond the device match.

        Args:
            request: the host's request.
            num_computed_tokens: tokens matched on the device.

        Returns:
            Whole blocks, at least one token of the prompt left to compute; whether the request has
            to wait for them outside the batch, which is never so for none.
        """
        try:
            num_tokens = self._query(request, int(num_computed_tokens))
            return num_tokens, num_tokens > 0 and self._is_async
        except Exception as error:  # noqa: BLE001 - a miss, whatever it was
            self._swallowed("query", error, request)
            with suppress(Exception):  # it is forgotten first, and then somebody is told
                self._forget(request)
            return 0, False

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[int]) -> None:
        """Notes that a request has pages; also for requests that were never queried.

        Args:
            request: the host's request.
            block_ids: page ids by block ordinal, device-matched ones included.
        """
        try:
            self._allocated(request, (block_ids,))
        except Exception as error:  # noqa: BLE001 - the pages come again with the report
            self._pages_lost(request, error)

    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> None:
        """The same where the host reports per layer group.

        Args:
            request: the host's request.
            block_ids: for each group, page ids by block ordinal; -1 in place for none.
        """
        try:
            self._allocated(request, block_ids)
        except Exception as error:  # noqa: BLE001 - the pages come again with the report
            self._pages_lost(request, error)

    def build_connector_meta(self, scheduler_output: Any) -> ConnectorMetadata:
        """Turns the host's report into instructions for the workers.

        Args:
            scheduler_output: the batch; may be empty, or None.

        Returns:
            Metadata; its ``failure`` is set when a promise cannot be kept.
        """
        iteration, now_s = self._iteration, time.monotonic()
        self._iteration += 1
        self._budget.refill()
        table, card = self._table, self._engine.card
        if table is None:
            return ConnectorMetadata(iteration, engine=card)
        if self._broken_promise:
            if self._running is not None:  # from here on nothing that was offered is loaded
                self._running.link.offers.built(iteration, (), ())
            return ConnectorMetadata(iteration, engine=card, failure=self._broken_promise)
        has_offers = any(state.offer is not None for state in table.unreported())
        try:
            metadata = build_metadata(table, scheduler_output, iteration, now_s)
        except Exception as error:  # noqa: BLE001 - told to the worker, who fails the loads
            self._swallowed("metadata", error)
            self._engine.run_uncached(f"a report of the host was not understood: {error!r}")
            failure = f"the load could not be planned: {error!r}" if has_offers else ""
            metadata = ConnectorMetadata(iteration, failure=failure)
        self._send_returns()
        if self._engine.running is None:
            metadata = without_saves(metadata, table.live_keys())
        still_open = tuple({s.offer.epoch for s in table.unreported() if s.offer is not None})
        if self._running is not None:
            orders = {order.epoch for order in metadata.loads}
            self._running.link.offers.built(iteration, orders, still_open)
        return replace(metadata, engine=card, still_open=still_open)

    def request_finished(self, request: Any, cache_block_ids: Sequence[int]) -> bool:
        """Whether the pages are to be kept until the workers report the request as saved.

        Args:
            request: the host's request.
            cache_block_ids: its pages; empty when there are none any more.

        Returns:
            True at most once per request (P19).
        """
        try:
            return self._finished(request, (cache_block_ids,))
        except Exception as error:  # noqa: BLE001 - its saves are dropped
            self._swallowed("finished", error, request)
            return False

    def request_finished_by_layer_group(
        self, request: Any, cache_block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """The same where the host reports per layer group.

        Args:
            request: the host's request.
            cache_block_ids: for each group; the outer list is empty when no pages are left.

        Returns:
            True at most once per request.
        """
        try:
            return self._finished(request, cache_block_ids)
        except Exception as error:  # noqa: BLE001 - its saves are dropped
            self._swallowed("finished", error, request)
            return False

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        """The host will not take up tokens that it was offered (E4).

        A load that was ordered goes on and is reported all the same.

        Args:
            request: the host's request.
            start: first token of the range.
            end: behind its last.
        """
        try:
            state = self._state_of(request)
            if state is not None and self._table is not None:
                self._table.cancel(state, int(start), int(end))
                self._send_returns()
        except Exception as error:  # noqa: BLE001 - the offer is given back when it expires
            self._swallowed("cancel", error, request)

    def request_reset(self, request: Any) -> None:
        """The request lost its pages and will come again under the same id (E4).

        Args:
            request: the host's request.
        """
        try:
            self._forget(request)
        except Exception as error:  # noqa: BLE001 - the next query begins anew anyway
            self._swallowed("reset", error, request)

    def shutdown(self) -> None:
        """Unregisters in bounded time, where the host calls it (E4)."""
        self._engine.close()

    # --- what they do ---

    def _ready(self) -> Running | None:
        """The registered engine; sets up the tables when the worker has registered."""
        running = self._engine.running
        if running is not None and running is not self._running:
            self._running = running
            args = self._engine.llm_args
            is_drafting = getattr(args, "speculative_config", None) is not None
            self._table = RequestTable(running.geometry, is_drafting, keeps_offers(args))
            # Without chunks the whole prompt is sized before the query, so all of an offer fits;
            # a host that can cancel may take any part.
            is_divisible = self._engine.has_layout and (
                self._engine.features.cancel_load or getattr(args, "enable_chunked_prefill", True)
            )
            tracer, journal = self._engine.tracer, self._engine.journal
            if tracer is not None:
                self._table.on_end = tracer.finish
            self._desk = OfferDesk(
                running.link, running.geometry, self._budget, is_divisible, journal, tracer
            )
            self._engine.at_close(self._desk.close)
            running.link.set_live_requests(self._table.live_keys)
        return running

    @property
    def _is_async(self) -> bool:
        running = self._running
        return running is not None and running.load_mode is LoadMode.ASYNC

    def _state_of(self, request: Any) -> RequestState | None:
        """What is known of a request, if anything. Never raises."""
        try:
            request_id = int(getattr(request, "request_id", -1))
        except (TypeError, ValueError):
            return None
        return None if self._table is None else self._table.find(request_id)

    def _query(self, request: Any, num_computed: int) -> int:
        running, table, desk = self._ready(), self._table, self._desk
        if running is None or table is None or desk is None:
            return self._say(request, 0, 0, "not registered yet")
        facts = facts_of(request, self._engine.settings.lora_digests, self._engine.instance)
        state = table.admit(facts, self._iteration, time.monotonic())
        if self._engine.tracer is not None:
            self._engine.tracer.begin(state.key, facts.request_id, state.prompt_tokens)
        state.allocated, state.matched_tokens = False, max(0, num_computed)
        if num_computed % running.geometry.tokens_per_block:
            self._note_partial_match()
        elif self._partial_match_in == self._iteration:
            # That match copies a page on a stream we cannot wait for (host contract §5), and a
            # page it still reads may be handed out to this request: a load would overwrite it.
            table.withdraw(state)
            return self._say(request, 0, 0, "a partial match was copied in this iteration")
        if state.offer is not None:
            num_tokens = table.narrow(state, num_computed)
            if num_tokens:
                return self._say(request, state.offer.end_tokens, num_tokens, "asked again")
        if state.chain is None:
            return self._say(request, 0, 0, facts.why_bypassed)
        window = load_window(state.prompt_tokens, num_computed, running.geometry)
        if window is None:
            return self._say(request, 0, 0, "no whole block beyond the device match")
        if not table.may_offer():
            return self._say(request, 0, 0, "too many offers are kept open by the host")
        answer = desk.ask(state, window)
        return self._take(request, state, answer, running)

    def _take(self, request: Any, state: RequestState, answer: Answer, running: Running) -> int:
        # What the server holds is not stored again; what it lacks is, device-matched blocks too.
        state.named_chunks = answer.cached_chunks
        state.offer = answer.offer
        if answer.offer is not None and self._is_async:
            state.offer = replace(answer.offer, is_async=True)
        cached_tokens = answer.cached_chunks * running.geometry.chunk_tokens
        num_tokens = answer.offer.num_tokens if answer.offer is not None else 0
        if self._engine.tracer is not None:
            self._engine.tracer.learn(state.key, tokens_offered=num_tokens, why=answer.why)
        return self._say(request, cached_tokens, num_tokens, answer.why)

    def _note_partial_match(self) -> None:
        self._partial_match_in = self._iteration
        self._engine.journal.count("partial_matches")
        if not self._said_partial:
            self._said_partial = True
            LOGGER.info(_NO_PARTIAL_REUSE)

    def _say(self, request: Any, cached_tokens: int, num_tokens: int, why: str) -> int:
        """One line per query, in the words existing end-to-end tests look for."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            LOGGER.debug(
                "kvkeep: request %s: lmcache_cached=%d new_matched=%d%s",
                request.request_id,
                cached_tokens,
                num_tokens,
                f" ({why})" if why else "",
                extra=extra(About("query", host_request=int(request.request_id))),
            )
        if self._table is not None:
            self._table.answered(int(request.request_id), num_tokens)
        self._engine.journal.count("queries")
        self._engine.journal.count("tokens_offered", num_tokens)
        return num_tokens

    def _allocated(self, request: Any, pages: Sequence[Sequence[int]]) -> None:
        # What was promised before caching ended is kept nevertheless.
        running, table = self._ready() or self._running, self._table
        if running is None or table is None:
            return
        state, has_ended = table.find(int(request.request_id)), self._engine.running is None
        offer = None if state is None else state.offer
        counted = getattr(request, "py_num_connector_matched_tokens", None)
        honoured, doubted = table.believe(int(request.request_id), counted)
        if lost := why_lost(request.request_id, honoured, offer):
            self._broken_promise = lost
            return
        if has_ended and offer is None:
            return
        groups = groups_of(pages, running.geometry.num_groups)
        if groups is None:
            if honoured != 0:
                self._pages_lost(request, None)
            return
        if (
            state is None
            or state.reported
            or state.finished
            or state.seen_iteration != self._iteration
        ):
            # Not the request that was asked about just now, or not asked about at all.
            facts = facts_of(request, self._engine.settings.lora_digests, self._engine.instance)
            state = table.admit(facts, self._iteration, time.monotonic())
            state.matched_tokens = 0 if state.offer is None else state.offer.start_tokens
            if lost := why_lost(request.request_id, honoured, state.offer):
                self._broken_promise = lost  # it was asked about with other tokens
                return
        if groups != state.pages:
            state.loading = None  # what was ordered for other pages says nothing of these
        state.pages, state.allocated, state.doubted = groups, True, doubted
        state.seen_iteration, state.seen_s = self._iteration, time.monotonic()
        if self._engine.has_layout:
            table.take_up(state, honoured)
            self._send_returns()
            return
        if reason := why_misfit(state, running.geometry, table.is_drafting):
            if state.offer is not None:
                self._broken_promise = reason
            self._engine.run_uncached(reason)

    def _finished(self, request: Any, pages: Sequence[Sequence[int]]) -> bool:
        running, table = self._running, self._table
        if table is None or running is None:
            return False
        state = table.find(int(request.request_id))
        if state is None or state.finished:
            return False
        groups, keep = groups_of(pages, running.geometry.num_groups), False
        tokens = request.get_tokens(0) if state.reported and groups is not None else ()
        if groups is not None and len(tokens) > state.prompt_tokens:
            num_pages = sum(len(group) - group.count(-1) for group in groups)
            last = last_word(state, tokens, running.geometry, groups)
            keep = running.saver.hold(state.key, state.facts.request_id, num_pages, last)
        table.finish(state)
        if not keep:
            running.saver.ended(state.key)
            table.ended.append(state.key)
        self._send_returns()
        return keep

    def _forget(self, request: Any) -> None:
        """After a failed query: nothing is promised, so nothing may stay promised."""
        state = self._state_of(request)
        if state is not None and self._table is not None:
            self._table.drop(state)
            self._send_returns()

    def _pages_lost(self, request: Any, error: Exception | None) -> None:
        """An allocation brought no pages that are understood; a report may bring them again.

        For a load in the background no report comes before it: the host takes the tokens for
        computed as soon as the load is said to be done, so it must never be.
        """
        if error is not None:
            self._swallowed("alloc", error, request)
        state, table = self._state_of(request), self._table
        if table is None or state is None:
            return
        if state.offer is not None and state.offer.is_async:
            why = "none came" if error is None else repr(error)
            self._broken_promise = (
                f"request {state.facts.request_id}: {state.offer.num_tokens} tokens were promised "
                f"in the background, and the pages for them are unknown: {why}"
            )
            table.withdraw(state)
            self._send_returns()

    def _send_returns(self) -> None:
        running, table = self._running, self._table
        if running is None or table is None:
            return
        returns = table.take_returns()
        for lease, start, count in returns.releases:
            running.link.release(lease, start, count, all_readers=True)
        for key in returns.ends:
            running.link.end_request(key)

    def _swallowed(self, hook: str, error: Exception, request: Any = None) -> None:
        number = getattr(request, "request_id", None)
        about = About(host_request=number) if isinstance(number, int) else NOTHING
        text = f"kvkeep: {hook} failed, going on uncached: {error!r}"
        self._engine.journal.report(f"scheduler_{hook}_errors", text, about=about)
