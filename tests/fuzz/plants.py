"""Faults planted on purpose, each a change of a few characters in one function, made at run time.

What shows that the oracles see: a fuzzer that finds nothing in sound code must find each of these.
The text that is changed has to be there exactly once, so a plant that rots says so. Runs in the
fuzzer's process.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plant:
    """One fault.

    Attributes:
        kind: what it stands for.
        module: where.
        function: its name, with its class's before a dot.
        before: text in its source.
        after: what becomes of it.
    """

    kind: str
    module: str
    function: str
    before: str
    after: str


PLANTS: dict[str, Plant] = {
    "container-limit": Plant(
        "a limit is gone: arrays and maps of one frame",
        "protocol.codec",
        "_Containers._count",
        "if self._left < 0:",
        "if False:",
    ),
    "duplicate-key": Plant(
        "a check of form is gone: a map may name a key twice",
        "protocol.codec",
        "_Containers.map_hook",
        "if len(result) != len(pairs):",
        "if False:",
    ),
    "page-sign": Plant(
        "a sign: negative page ids are let through",
        "protocol.layout",
        "unpack_pages",
        "int(pages.min()) < 0 or ",
        "",
    ),
    "pool-length": Plant(
        "a length check is off by one page",
        "protocol.layout",
        "check_pool",
        "(pool.num_pages - 1)",
        "(pool.num_pages - 2)",
    ),
    "header-checksum": Plant(
        "a checksum is not looked at: torn extent headers",
        "protocol.extents",
        "unpack_header",
        'if int(checksums(row)[0]) != int(row["checksum"][0]):',
        "if False:",
    ),
    "session-owner": Plant(
        "an ownership check is gone: any engine's session may be named",
        "server.core.desk",
        "Desk.of_instance",
        "session.instance.instance != process.instance",
        "False",
    ),
    "session-process": Plant(
        "an ownership check is gone: another rank's session counts as one's own",
        "server.core.desk",
        "Desk.of_process",
        "session.process != process.process",
        "False",
    ),
    "lease-owner": Plant(
        "an ownership check is gone: any engine's lease may be named",
        "server.core.leases",
        "Leases.get",
        "and found.instance is instance",
        "",
    ),
    "lease-range": Plant(
        "a range is off by one: chunks beyond a lease are retrieved",
        "server.core.handle_loads",
        "LoadHandlers._retrieve",
        "first + body.count > lease.ready",
        "first + body.count > lease.ready + 1",
    ),
    "generation": Plant(
        "a generation is not raised",
        "server.core.publishing",
        "Publisher.publish",
        "self.next_generation += len(part)",
        "self.next_generation += 0",
    ),
    "unpin": Plant(
        "an unpin is missing: what was given back stays pinned",
        "server.core.leases",
        "Leases._release",
        "self._arena.unpin(lease.owner, _named(lease.slots[where][:, shards]))",
        "pass",
    ),
    "double-reply": Plant(
        "a request is answered twice",
        "server.core.outbox",
        "Outbox._settle",
        "ticket.done = True",
        "ticket.done = False",
    ),
    "epoch": Plant(
        "the epoch is not checked",
        "protocol.session",
        "ServerSession._check_incarnation",
        "envelope.epoch != self.epoch",
        "False",
    ),
    "deadline": Plant(
        "a deadline that has passed is not looked at",
        "protocol.session",
        "ServerSession.admit",
        "now_ns >= envelope.deadline_ns",
        "False",
    ),
    "free-while-copied": Plant(
        "slots of a cancelled STORE are freed while copies into them fly",
        "server.core.plans",
        "Plans.end",
        "plan.num_pieces == 0 and plan.planned",
        "plan.planned",
    ),
    "clear-while-read": Plant(
        "CLEAR frees slots that somebody reads",
        "server.core.operations",
        "Operations._sweep",
        "read = slots.pins[numbers] > 0",
        "read = slots.pins[numbers] < 0",
    ),
    "ragged-blob": Plant(
        "a length check is gone: extent ids that are no whole number",
        "server.core.handle_engines",
        "_u32",
        "if len(blob) % 4:",
        "if False:",
    ),
    "commit-count": Plant(
        "a count is not checked: more chunks are published than were copied",
        "server.core.handle_saves",
        "SaveHandlers._commit",
        "if body.count > plan.good:",
        "if False:",
    ),
    "torn-part": Plant(
        "what a tier did not bring, or brought spoilt, is published",
        "server.core.tiers.landing",
        "_statuses",
        "np.frombuffer(piece.statuses, np.uint8)",
        "np.zeros(len(piece.statuses), np.uint8)",
    ),
    "not-forgotten": Plant(
        "a tier is used while it is still to forget",
        "server.core.tiers.forgetting",
        "Forgetting.is_barred",
        "fingerprint in self._owed[tier.number]",
        "False",
    ),
    "stuck-porter": Plant(
        "slots are given away while a porter that does not die reads into them",
        "server.core.tiers.tier",
        "Tier.strand",
        "if not job.touches_memory:",
        "if True:",
    ),
    "lock-twice": Plant(
        "a promotion that ends gives back a lock that somebody's lease holds",
        "server.core.tiers.landing",
        "unlock",
        "index.locks[node] -= 1",
        "index.locks[node] = 0",
    ),
    "hit-unlocked": Plant(
        "a hit is told of and nothing keeps it from being evicted",
        "server.core.leases",
        "Leases.open",
        "index.locks[node] += 1",
        "index.locks[node] += 0",
    ),
}

CI_SAMPLE = ("duplicate-key", "lease-owner", "double-reply", "torn-part")
"""Those that are found within a second or two."""


@dataclass
class Planted:
    """A plant in the ground; ``undo`` takes it out again.

    Attributes:
        places: (holder, name, what was there) of every name that was bound to the function.
    """

    places: list[tuple[Any, str, Any]] = field(default_factory=list)

    def undo(self) -> None:
        """Puts the product's function back."""
        for holder, name, value in self.places:
            setattr(holder, name, value)
        self.places.clear()


def plant(which: Plant) -> Planted:
    """Changes the function, wherever it is bound.

    Args:
        which: the fault.

    Raises:
        ValueError: the text is not there exactly once.
    """
    module = importlib.import_module(which.module)
    holder: Any = module
    *outer, name = which.function.split(".")
    for part in outer:
        holder = getattr(holder, part)
    old = inspect.getattr_static(holder, name)
    source = textwrap.dedent(inspect.getsource(old))
    if source.count(which.before) != 1:
        raise ValueError(f"{which.module}.{which.function} does not have {which.before!r} once")
    space: dict[str, Any] = {}
    code = compile(source.replace(which.before, which.after), module.__file__ or "", "exec")
    exec(code, module.__dict__, space)  # noqa: S102 - the product's own source, changed by us
    planted = Planted()
    _bind(planted, holder, name, space[name])
    if not outer:
        for other in list(sys.modules.values()):
            root = getattr(other, "__name__", "").partition(".")[0]
            if root in ("protocol", "server") and getattr(other, name, None) is old:
                _bind(planted, other, name, space[name])
    return planted


def _bind(planted: Planted, holder: Any, name: str, value: Any) -> None:
    planted.places.append((holder, name, inspect.getattr_static(holder, name)))
    setattr(holder, name, value)
