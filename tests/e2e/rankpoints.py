"""Further points for traps in a rank's process: around what the adapter asks, and around copies.

A plug-in of ``adapter.conformance.host.ranks``: ``LOOKUP.before`` and ``LOOKUP.after`` (the answer
is there), ``STORE.before`` and ``STORE.after`` (it is sent, its answer is not there), ``answered``
(an answer to something sent was taken in), ``copy.before`` and ``copy.after`` of loads; on a
simulated device those are on the stream that the load was queued on. What the keeper asks has such
points too: ``REGISTER_KV_CACHE``, ``UNREGISTER`` and others, ``.before`` and ``.after`` it is sent.
"""

from __future__ import annotations

from typing import Any

from adapter.calls import Calls
from adapter.channel import Channel
from adapter.conformance.host.ranks.injection import Injector
from adapter.copy import HeldLoad
from adapter.worker import KvkeepConnectorWorker
from protocol.device.interface import Batch
from protocol.device.simulated import copies
from protocol.device.simulated.memory import Memory


def install(rank: int, injector: Injector) -> None:
    """Puts the points in, for this process."""
    call, submit, poll, copy = Channel.call, Channel.submit, Channel.poll, HeldLoad.copy
    run, send = copies.run, Calls.send

    def pointed_call(channel: Channel, body: Any, *rest: Any, **named: Any) -> Any:
        injector.reach(f"{body.op.name}.before")
        reply = call(channel, body, *rest, **named)
        injector.reach(f"{body.op.name}.after")
        return reply

    def pointed_submit(channel: Channel, body: Any, *rest: Any, **named: Any) -> Any:
        injector.reach(f"{body.op.name}.before")
        ticket = submit(channel, body, *rest, **named)
        injector.reach(f"{body.op.name}.after")
        return ticket

    def pointed_send(calls: Calls, body: Any, *rest: Any, **named: Any) -> Any:
        injector.reach(f"{body.op.name}.before")
        is_sent = send(calls, body, *rest, **named)
        injector.reach(f"{body.op.name}.after")
        return is_sent

    def pointed_poll(channel: Channel, wait_s: float) -> Any:
        completions = poll(channel, wait_s)
        if completions:
            injector.reach("answered")
        return completions

    def pointed_copy(load: HeldLoad, *rest: Any, **named: Any) -> Any:
        injector.reach("copy.before")
        copy(load, *rest, **named)
        injector.reach("copy.after")

    def pointed_run(batch: Batch, memory: Memory, *rest: Any) -> None:
        target = memory.find(int(batch.targets[0]))
        is_load = target is not None and not target.is_host
        if is_load:
            injector.reach("copy.before")
        run(batch, memory, *rest)
        if is_load:
            injector.reach("copy.after")

    for owner, name, pointed in (
        (Channel, "call", pointed_call),
        (Channel, "submit", pointed_submit),
        (Channel, "poll", pointed_poll),
        (Calls, "send", pointed_send),
        (HeldLoad, "copy", pointed_copy),
        (copies, "run", pointed_run),
    ):
        setattr(owner, name, pointed)


def lose_extents(engine: Any) -> int:
    """To be called in a rank: drops its mappings of the arena without a word; returns how many."""
    worker: KvkeepConnectorWorker = engine.connector.worker
    assert worker.link is not None
    return worker.link.extents.take_all()
