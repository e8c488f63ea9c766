"""Whether the server lives, and whether it is ready: each check with a word on why not.

Living is that its loop answers a question within two seconds; a restart may help where it does
not. Ready is that besides nothing of it is broken: the copier, the tiers, the sockets' files, the
arena. Must not know: HTTP. Runs in: the threads that serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from protocol.status import COPIER_SILENT_S, TIER_SILENT_S
from server.web.watch import Answer, View

HOST_COPIER = "host"
CHECKS = ("loop", "draining", "copiers", "arena", "sockets", "tiers")
"""What ``ready`` looks at, by the names that ``exclude`` takes."""


@dataclass(frozen=True)
class Check:
    """What was looked at.

    Attributes:
        name: one of ``CHECKS``.
        is_good: the verdict.
        text: why, one line.
    """

    name: str
    is_good: bool
    text: str


def alive(view: View) -> list[Check]:
    """Whether the loop answers."""
    latest = view.latest
    if latest is None or view.why:
        return [Check("loop", False, f"the server does not answer: {view.why}")]
    return [Check("loop", True, f"answered within {latest.took_s * 1000:.1f} ms")]


def ready(view: View, exclude: Collection[str] = ()) -> list[Check]:
    """Whether engines get all that they could.

    Args:
        view: what is known.
        exclude: checks to leave out; the loop's always stays.
    """
    checks = alive(view)
    if view.latest is not None and not view.why:
        checks += _inside(view.latest)
    return [check for check in checks if check.name == "loop" or check.name not in exclude]


def _inside(answer: Answer) -> Iterator[Check]:
    status, values = answer.status, answer.values
    if status is not None and status.server.draining:
        yield Check("draining", False, "the server is about to end and takes nothing new")
    yield from _copiers(answer)
    if values.get("extents_failed", 0) and not values.get("extents", 0):
        yield Check("arena", False, "no extent could be made: its file system is full")
    elif values.get("complaint_arena_removed", 0):
        text = "its folder was removed and made again; the next server lacks what was in it"
        yield Check("arena", True, text)
    else:
        yield Check("arena", True, f"{values.get('extents', 0)} extents")
    if values.get("complaint_socket_removed", 0):
        yield Check("sockets", False, "a socket's file was removed: restart the server")
    else:
        yield Check("sockets", True, "in place")
    yield from _tiers(answer)


def _copiers(answer: Answer) -> Iterator[Check]:
    for copier in answer.status.copiers if answer.status is not None else ():
        # A device's copier ends 30 s after its last engine left.
        is_good = copier.state == "up" or (copier.name != HOST_COPIER and copier.state == "ending")
        if is_good and copier.silent_s >= COPIER_SILENT_S:
            text = f"{copier.name}: copier not answering for {copier.silent_s:.0f} s"
            yield Check("copiers", False, f"{text}, though it has work; replaced after 10 s")
            continue
        stuck = f", {copier.stuck} killed before it that do not end" if copier.stuck else ""
        text = f"{copier.name}: {copier.state}, {copier.restarts} restarts{stuck}"
        yield Check("copiers", is_good, text)


def _tiers(answer: Answer) -> Iterator[Check]:
    if answer.status is not None:
        for tier in answer.status.tiers:
            is_silent = tier.silent_s >= TIER_SILENT_S
            text = f", and nothing has come to an end for {tier.silent_s:.0f} s"
            still = text if is_silent else ""
            why = f": {tier.why or tier.warning}" if tier.why or tier.warning else ""
            is_good = tier.state == "up" and not is_silent
            yield Check("tiers", is_good, f"{tier.name}: {tier.state}{why}{still}")
        return
    for name, value in answer.values.items():  # a server that does not know STATUS
        if name.startswith("tier_") and name.endswith("_up"):
            yield Check("tiers", bool(value), f"{name[5:-3]}: {'up' if value else 'down'}")
