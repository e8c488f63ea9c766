"""The demo from its first act to its last, whatever happens in between.

An act that fails ends the story: later ones need what it left. Everything that
was started is gone when ``play`` returns.

Must not know: how acts are shown beyond telling a watcher. Runs in the demo's
main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from adapter.conformance.demo import closing
from adapter.conformance.demo.acts import Report, TextActs
from adapter.conformance.demo.cast import ARENA_BYTES
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import DemoError, Stage, stage

_LOG_LINES: Final = 15
Act = Callable[[Outcome, Report], None]


@dataclass(frozen=True)
class Scale:
    """How much is played.

    Attributes:
        num_prompts: Conversations.
        num_requests: Requests of the trace.
    """

    num_prompts: int = 6
    num_requests: int = 500


QUICK: Final = Scale(num_prompts=2, num_requests=100)


@dataclass(frozen=True)
class Watcher:
    """Who is told of the story.

    Attributes:
        begins: Given an act's title; what it yields takes reports of progress.
        ended: Given an act that is over, or could not be played.
        logs: Given the last lines of all logs when an act did not hold.
    """

    begins: Callable[[str], AbstractContextManager[Report]]
    ended: Callable[[Outcome], None]
    logs: Callable[[str], None]


def play(scale: Scale, watcher: Watcher) -> list[Outcome]:
    """Play every act.

    Args:
        scale: How much.
        watcher: Is told.

    Returns:
        One outcome per act; those after a failure have no claims.

    Raises:
        DemoError: If the machine has no room for it.
    """
    with stage(ARENA_BYTES) as on:
        acts = _acts(on, scale)
        outcomes = [Outcome(title) for title, _ in acts]
        for outcome, (_, act) in zip(outcomes, acts, strict=True):
            _perform(act, outcome, watcher)
            watcher.ended(outcome)
            if not outcome.held:
                watcher.logs(on.log_tails(_LOG_LINES))
            if outcome.error:
                break
        return outcomes


def _acts(on: Stage, scale: Scale) -> list[tuple[str, Act]]:
    text = TextActs(on, scale.num_prompts)

    def trace(outcome: Outcome, report: Report) -> None:
        closing.replay_trace(on, text.server, scale.num_requests, outcome, report)

    def look(outcome: Outcome, report: Report) -> None:
        closing.look_at_server(text.server, outcome)

    return [
        ("launch a server", text.launch),
        ("reference: an engine without any cache", text.reference),
        ("engine A: prefill, generate, save, kill -9", text.engine_a),
        ("engine B, cold, room for one prompt: ask all, twice", text.cold_engine),
        ("kill -9 the server between offer and load", text.open_offer),
        ("launch another server", text.next_server),
        (f"replay {scale.num_requests} requests of a production trace", trace),
        ("look at the live server, then SIGTERM", look),
    ]


def _perform(act: Act, outcome: Outcome, watcher: Watcher) -> None:
    begun_s = time.monotonic()
    with watcher.begins(outcome.title) as report:
        try:
            act(outcome, report)
        except (DemoError, OSError) as error:
            outcome.error = str(error) or type(error).__name__
        finally:
            outcome.seconds = time.monotonic() - begun_s
