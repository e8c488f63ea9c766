"""Stores and retrieves as an engine makes them, at most two requests in flight.

Purpose: move the pages of many requests and time it from the first message to the last reply. A
store is STORE and COMMIT; a retrieve is LOOKUP, RETRIEVE, the load into the pool, and RELEASE. One
thread copies; two others, each blocked on its own channel most of the time, ask and give back, as
an engine's scheduler and its link do. Must not know: plain copies, rounds. Runs in: the load
generator's main thread and those two.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.channel import Channel
from adapter.conformance.loadgen.engine import CALL_S, Engine, LoadgenError, Prompt
from adapter.copy import ShardLoad, load_pages
from adapter.pagememory import GroupPages
from protocol.ids import LeaseId
from protocol.layout import SLOT_DTYPE, pack_pages
from protocol.messages import (
    Commit,
    CommitReply,
    Lookup,
    LookupReply,
    Release,
    Retrieve,
    RetrieveReply,
    Store,
    StoreReply,
)

IN_FLIGHT = 2
_MAPPED_S = 60.0
"""How long a reader may take to map and populate what was just stored."""


@dataclass(frozen=True)
class Leased:
    """Chunks that may be read.

    Attributes:
        prompt: whose.
        lease: ends with RELEASE.
        slots: SLOT_DTYPE[num_blocks].
    """

    prompt: Prompt
    lease: LeaseId
    slots: NDArray[Any]


def store_s(engine: Engine, prompts: Sequence[Prompt]) -> float:
    """Stores requests and commits them.

    Args:
        engine: registered, with those pages.
        prompts: unknown to the server.

    Returns:
        Seconds from the first STORE to the last COMMIT's reply.

    Raises:
        LoadgenError: the server stored less than all, refused, or did not answer.
    """
    stores = [_store(engine, prompt) for prompt in prompts]
    waiting: dict[int, Prompt] = {}
    num_sent = num_done = 0
    channel = engine.channel
    began = time.perf_counter()
    while num_done < len(prompts):
        while num_sent < len(prompts) and num_sent - num_done < IN_FLIGHT:
            waiting[channel.submit(stores[num_sent], CALL_S)] = prompts[num_sent]
            num_sent += 1
        ended = channel.poll(CALL_S)
        if not ended:
            raise LoadgenError(f"no reply to a STORE or COMMIT within {CALL_S:g} s")
        for one in ended:
            prompt = waiting.pop(one.ticket)
            if one.error is not None:
                raise LoadgenError(f"store of {prompt.num_blocks} blocks: {one.error}")
            if isinstance(one.body, StoreReply):
                commit = _commit(engine, prompt, one.body)
                waiting[channel.submit(commit, CALL_S)] = prompt
            else:
                _check_commit(prompt, one.body)
                num_done += 1
    return time.perf_counter() - began


def _store(engine: Engine, prompt: Prompt) -> Store:
    return Store(
        session=engine.joined.session,
        store=prompt.number,
        request=prompt.number,
        shard=0,
        start=0,
        parent=b"",
        keys=prompt.keys,
        pages=pack_pages(prompt.pages),
    )


def _commit(engine: Engine, prompt: Prompt, reply: StoreReply) -> Commit:
    if reply.copied != prompt.num_blocks:
        raise LoadgenError(
            f"{reply.copied} of {prompt.num_blocks} blocks were copied, {reply.held} were there: "
            f"{reply.stop.name}"
        )
    return Commit(session=engine.joined.session, store=prompt.number, count=reply.copied)


def _check_commit(prompt: Prompt, reply: object) -> None:
    if not isinstance(reply, CommitReply) or reply.published != prompt.num_blocks:
        raise LoadgenError(f"COMMIT of {prompt.num_blocks} blocks was answered {reply}")


def lease(engine: Engine, channel: Channel, prompt: Prompt, must_s: float = 0.0) -> Leased:
    """LOOKUP and RETRIEVE of a whole request.

    Args:
        engine: registered.
        channel: of the calling thread.
        prompt: stored before.
        must_s: how long to try again while extents are still being mapped.

    Returns:
        Where its blocks lie.

    Raises:
        LoadgenError: less than all of it was found.
    """
    session, deadline = engine.joined.session, time.monotonic() + must_s
    look = Lookup(session=session, request=prompt.number, start=0, keys=prompt.keys)
    while True:
        found = engine.ask(look, channel)
        if isinstance(found, LookupReply) and found.ready == prompt.num_blocks:
            break
        if time.monotonic() >= deadline:
            raise LoadgenError(f"LOOKUP of {prompt.num_blocks} blocks was answered {found}")
        time.sleep(0.01)
    token = LeaseId(found.lease)
    asked = Retrieve(session=session, lease=token, start=0, count=prompt.num_blocks)
    reply = engine.ask(asked, channel)
    if not isinstance(reply, RetrieveReply) or reply.num_shards != 1:
        raise LoadgenError(f"RETRIEVE was answered {reply}")
    return Leased(prompt, token, np.frombuffer(reply.slots, dtype=SLOT_DTYPE))


def give_back(engine: Engine, channel: Channel, leased: Leased) -> None:
    """RELEASE of a whole request.

    Args:
        engine: registered.
        channel: of the calling thread.
        leased: from ``lease``.

    Raises:
        LoadgenError: it was refused or not answered.
    """
    engine.ask(Release(session=engine.joined.session, lease=leased.lease), channel)


def wait_mapped(engine: Engine, prompts: Iterable[Prompt]) -> list[Leased]:
    """Waits until requests can be read, and says where they lie.

    Args:
        engine: registered.
        prompts: stored before.

    Returns:
        Where their blocks lie; the leases are given back already, so this is for timing plain
        copies only.

    Raises:
        LoadgenError: not all of it could be read in time.
    """
    found = []
    for prompt in prompts:
        leased = lease(engine, engine.channel, prompt, _MAPPED_S)
        give_back(engine, engine.channel, leased)
        found.append(leased)
    return found


class Reader:
    """Retrieves requests; keeps its two further threads and their channels from round to round.

    One for an engine's whole life: the server takes eight connections of a process, and cannot know
    which of them were closed.
    """

    def __init__(self, engine: Engine) -> None:
        """Starts the threads.

        Args:
            engine: registered.
        """
        self._engine = engine
        self._channels = (engine.link.open_channel(), engine.link.open_channel())
        # One thread each, so that a channel stays with its thread from round to round.
        self._asker = ThreadPoolExecutor(1, "bench-ask")
        self._giver = ThreadPoolExecutor(1, "bench-give")

    def retrieve_s(self, prompts: Sequence[Prompt]) -> float:
        """Loads requests into the pages they name.

        Args:
            prompts: stored and mapped.

        Returns:
            Seconds from the first LOOKUP to the last RELEASE's reply.

        Raises:
            LoadgenError: something was not there, refused or not answered.
            LoadError: bytes changed under a load.
        """
        room = threading.Semaphore(IN_FLIGHT)
        ready: queue.SimpleQueue[Leased | None] = queue.SimpleQueue()
        used: queue.SimpleQueue[Leased | None] = queue.SimpleQueue()
        began = time.perf_counter()
        asking = self._asker.submit(self._ask, prompts, room, ready)
        giving = self._giver.submit(self._give, room, used)
        try:
            while (leased := ready.get(timeout=3 * CALL_S)) is not None:
                self._load(leased)
                used.put(leased)
        except queue.Empty:
            raise LoadgenError("nothing was leased any more") from None
        finally:
            used.put(None)
            _finish(giving, asking)
        return time.perf_counter() - began

    def _ask(
        self,
        prompts: Sequence[Prompt],
        room: threading.Semaphore,
        ready: queue.SimpleQueue[Leased | None],
    ) -> None:
        try:
            for prompt in prompts:
                if not room.acquire(timeout=2 * CALL_S):
                    raise LoadgenError("no lease was given back any more")
                ready.put(lease(self._engine, self._channels[0], prompt))
        finally:
            ready.put(None)

    def _give(self, room: threading.Semaphore, used: queue.SimpleQueue[Leased | None]) -> None:
        while (leased := used.get()) is not None:
            give_back(self._engine, self._channels[1], leased)
            room.release()

    def _load(self, leased: Leased) -> None:
        engine = self._engine
        pages = GroupPages.packed(engine.pool.view, engine.page_bytes)
        load = ShardLoad(0, pages, leased.slots, leased.prompt.pages[:, None])
        load_pages(engine.link.extents, engine.joined.epoch, [load])

    def close(self) -> None:
        """Ends the threads and their channels."""
        for threads, channel in zip((self._asker, self._giver), self._channels, strict=True):
            threads.submit(channel.close)
            threads.shutdown()


def _finish(*futures: Future[None]) -> None:
    for future in futures:
        future.result(4 * CALL_S)
