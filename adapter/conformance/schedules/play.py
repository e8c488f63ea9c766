"""Plays schedules on an engine: equal answers, and nothing left behind.

An answer is equal when its tokens are and its logits are bit for bit those of a run without any
cache. What may not be left behind after a schedule is in ``leaks``. Must not know: how engines are
built, whose connector it is. Runs in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.schedules.draw import Ask, Schedule, Wave
from adapter.conformance.schedules.leaks import Leaks, of_kvkeep
from adapter.conformance.schedules.subject import Answer, Handle, Subject

_RESULT_S: Final = 60.0
_SETTLE_S: Final = 20.0
_POLL_S: Final = 0.03
_AGAIN: Final = 5
"""A machine that is busy may lose a save or two."""

_LET_JOIN_S: Final = 0.5
"""Pause after a question in vain, and so much more after each further one."""


class PlayError(AssertionError):
    """An engine answered wrongly, hung or left something behind."""


class NothingLoadedError(PlayError):
    """An engine answered rightly, and never loaded anything."""


@dataclass
class Tally:
    """What was seen.

    Attributes:
        schedules: played.
        requests: that ended.
        cancelled: of them, by the client.
        compared: answers compared with the reference.
        prompt_tokens: of those.
        loaded_tokens: of those, taken from the server.
        errors: one line per failure.
    """

    schedules: int = 0
    requests: int = 0
    cancelled: int = 0
    compared: int = 0
    prompt_tokens: int = 0
    loaded_tokens: int = 0
    errors: list[str] = field(default_factory=list)


def play(
    schedule: Schedule,
    subject: Subject,
    expected: Callable[[Ask], Answer],
    tally: Tally,
    leaks: Leaks = of_kvkeep,
) -> None:
    """Plays one schedule.

    Args:
        schedule: from ``draw``.
        subject: the engine.
        expected: what an engine without a cache answers.
        tally: counts what is seen.
        leaks: says what is left behind.

    Raises:
        PlayError: naming seed, request and difference.
    """
    for wave in schedule.waves:
        _play_wave(schedule.seed, wave, subject, expected, tally)
        if wave.forget:
            subject.forget_reuse(_SETTLE_S)
        time.sleep(wave.pause_s)
    if schedule.talks:
        firsts = tuple(talk.first for talk in schedule.talks)
        seconds = tuple(talk.second(expected(talk.first).tokens) for talk in schedule.talks)
        for asks in (firsts, seconds):
            subject.forget_reuse(_SETTLE_S)  # only the server has what the first turn left
            _play_wave(schedule.seed, Wave(asks, forget=True), subject, expected, tally)
    subject.forget_reuse(_SETTLE_S)
    check_nothing_left(schedule.seed, subject, leaks)
    tally.schedules += 1


def play_again(ask: Ask, subject: Subject, expected: Callable[[Ask], Answer], tally: Tally) -> None:
    """Asks the same until something of it is loaded: an engine that never loads answers right, too.

    Args:
        ask: as from ``repeatable``, of a tenant that nothing is stored for yet.
        subject: the engine.
        expected: what an engine without a cache answers.
        tally: counts what is seen.

    Raises:
        PlayError: an answer differs, or the first was loaded.
        NothingLoadedError: all were right, and none was loaded.
    """
    for turn in range(_AGAIN):
        answer = _result(0, ask, subject.submit(ask))
        assert answer is not None, "it is not to be cancelled"
        check_equal(0, ask, answer, expected(ask))
        loaded = answer.num_loaded_tokens
        tally.requests, tally.compared = tally.requests + 1, tally.compared + 1
        tally.prompt_tokens += len(ask.prompt)
        tally.loaded_tokens += loaded
        subject.forget_reuse(_SETTLE_S)
        if loaded and not turn:
            raise PlayError(f"{loaded} tokens of {ask.cache_salt!r} loaded, which has stored none")
        if loaded:
            return
        # The other ranks join with the first requests, and on a device a copier of its own has to
        # start for each of them.
        time.sleep(_LET_JOIN_S * turn)
    raise NothingLoadedError(
        f"asked {_AGAIN} times, nothing was ever loaded: {ask}; {_seen(subject)}"
    )


def _seen(subject: Subject) -> str:
    """What ranks and server count, as far as it is not 0; for who looks into a failure."""
    looks = subject.look()
    told = [
        f"rank {rank}: { {n: v for n, v in one.adapter.items() if v} }"
        for rank, one in enumerate(looks)
    ]
    return "; ".join([*told, f"server: { {n: v for n, v in looks[0].server.items() if v} }"])


def _play_wave(
    seed: int, wave: Wave, subject: Subject, expected: Callable[[Ask], Answer], tally: Tally
) -> None:
    handles = [(ask, subject.submit(ask)) for ask in wave.asks]
    began_s = time.monotonic()
    doomed = [(ask.cancel_after_s, handle) for ask, handle in handles if ask.cancel_after_s]
    for after_s, handle in sorted(doomed, key=lambda one: one[0]):
        time.sleep(max(0.0, began_s + after_s - time.monotonic()))
        subject.cancel(handle)
    for ask, handle in handles:
        answer = _result(seed, ask, handle)
        tally.requests += 1
        if answer is None:
            tally.cancelled += 1
            continue
        check_equal(seed, ask, answer, expected(ask))
        tally.compared += 1
        tally.prompt_tokens += len(ask.prompt)
        tally.loaded_tokens += answer.num_loaded_tokens


def _result(seed: int, ask: Ask, handle: Handle) -> Answer | None:
    try:
        return handle.result(_RESULT_S)
    except RequestCancelledError:
        if ask.cancel_after_s is None:
            raise PlayError(f"seed {seed}: a request was cancelled by nobody: {ask}") from None
        return None
    except Exception as error:
        raise PlayError(f"seed {seed}: {error!r} for {ask}") from error


def check_equal(seed: int, ask: Ask, answer: Answer, wanted: Answer) -> None:
    """Compares an answer with that of a run without a cache.

    Args:
        seed: for the message.
        ask: the request.
        answer: of the engine under test.
        wanted: the reference.

    Raises:
        PlayError: they differ.
    """
    if answer.tokens != wanted.tokens:
        raise PlayError(f"seed {seed}: tokens {answer.tokens}, not {wanted.tokens}, for {ask}")
    if len(answer.logits) != len(wanted.logits):
        raise PlayError(f"seed {seed}: {len(answer.logits)} logits for {ask}")
    for number, (one, other) in enumerate(zip(answer.logits, wanted.logits, strict=True)):
        if not _same_bits(one, other):
            raise PlayError(
                f"seed {seed}: logits of token {number} differ with {answer.num_loaded_tokens} "
                f"tokens loaded, for {ask}"
            )


def _same_bits(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(torch.equal(one, other))


def check_nothing_left(seed: int, subject: Subject, leaks: Leaks = of_kvkeep) -> None:
    """Looks for leaks, giving what is under way in the background a moment to end.

    Args:
        seed: for the message.
        subject: an engine on which nothing runs.
        leaks: says what is left behind.

    Raises:
        PlayError: naming what is left.
    """
    end_s = time.monotonic() + _SETTLE_S
    while True:
        left = leaks(subject.look())
        if not left:
            return
        if time.monotonic() > end_s:
            raise PlayError(f"seed {seed}: left behind: {', '.join(left)}")
        time.sleep(_POLL_S)
