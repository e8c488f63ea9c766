"""Random schedules: waves of requests that share beginnings, end early, or are cancelled.

Lengths crowd around multiples of the block size, where engines go wrong. Prompts come from a few
documents that all schedules of a seed's family share, so that what one schedule stored is hit by
the next; some schedules end in a talk, whose second turn goes on from an answer, so that what was
stored of generated tokens is read, too. Must not know: engines. Pure function of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_SALTS: Final = (None, None, None, "tenant-a", "tenant-b")
_TOLD_TOKENS: Final = 4


@dataclass(frozen=True)
class Shape:
    """What the requests of an engine may look like.

    Attributes:
        tokens_per_block: the engine's.
        max_blocks: of a prompt.
        vocab_size: token ids are below it.
        num_documents: texts that prompts begin with.
        max_new_tokens: of an answer.
        family: schedules of one family share documents.
        forget: share of waves after which the host's own cache is emptied.
        cancel: share of requests that are cancelled.
        stop: share of requests with stop tokens.
        context_only: whether requests end after their first token, as the first half of a
            disaggregated one.
        one_left: whether prompts are one token longer than whole blocks, so that a full hit leaves
            one token to compute.
        pause_s: between waves, during which the executor is idle.
        talk: share of schedules with a talk.
    """

    tokens_per_block: int
    max_blocks: int = 4
    vocab_size: int = 250
    num_documents: int = 3
    max_new_tokens: int = 6
    family: int = 0
    forget: float = 0.7
    cancel: float = 0.15
    stop: float = 0.25
    context_only: bool = False
    one_left: bool = False
    pause_s: float = 0.0
    talk: float = 0.25


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        prompt: token ids.
        max_new_tokens: of the answer.
        stop_ids: end the answer early.
        cache_salt: tenant.
        cancel_after_s: when to cancel it after the wave was submitted; None lets it end.
        context_only: as ``HostEngine.submit``.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    cache_salt: str | None = None
    cancel_after_s: float | None = None
    context_only: bool = False

    def __str__(self) -> str:
        """For a message: a seed repeats the whole prompt, so its beginning is enough."""
        begins = ", ".join(map(str, self.prompt[:_TOLD_TOKENS]))
        more = ", …" if len(self.prompt) > _TOLD_TOKENS else ""
        rest = repr(replace(self, prompt=())).partition("max_new_tokens")[2]
        return f"{len(self.prompt)} tokens [{begins}{more}], max_new_tokens{rest.removesuffix(')')}"


@dataclass(frozen=True)
class Wave:
    """Requests submitted at once.

    Attributes:
        asks: in order of submission.
        forget: whether the host's own cache is emptied afterwards, so that only the server's is
            left.
        pause_s: how long nothing is asked afterwards.
    """

    asks: tuple[Ask, ...]
    forget: bool
    pause_s: float = 0.0


@dataclass(frozen=True)
class Talk:
    """Two turns, one after the other: the answer of the first is in the second one's prompt.

    Attributes:
        first: of the first turn; its answer fills a block.
        tail: what the second turn adds.
    """

    first: Ask
    tail: tuple[int, ...]

    def second(self, answer: Sequence[int]) -> Ask:
        """The second turn.

        Args:
            answer: tokens that the first one got.
        """
        return replace(self.first, prompt=(*self.first.prompt, *answer, *self.tail))


@dataclass(frozen=True)
class Schedule:
    """What an engine is asked, from one seed.

    Attributes:
        seed: that it was drawn from.
        waves: one after the other.
        talks: held at the same time, behind the waves.
    """

    seed: int
    waves: tuple[Wave, ...]
    talks: tuple[Talk, ...] = ()


def draw(seed: int, shape: Shape) -> Schedule:
    """The schedule of a seed.

    Args:
        seed: any integer.
        shape: of the engine's requests.
    """
    rng = random.Random(f"schedule {seed}")
    documents = _documents(shape)
    waves = []
    for _ in range(rng.randint(2, 3)):
        asks = tuple(_ask(rng, documents, shape) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        if rng.random() < 0.3:
            asks += (asks[0],)  # the same at the same time
        waves.append(Wave(asks, rng.random() < shape.forget, shape.pause_s))
    talks = _talks(rng, documents, shape) if rng.random() < shape.talk else ()
    return Schedule(seed, tuple(waves), talks)


def repeatable(shape: Shape, tenant: str) -> Ask:
    """A request to be asked again: all its blocks but the last token's can be loaded then.

    Args:
        shape: of the engine's requests.
        tenant: whose; nobody else's blocks are hit.
    """
    length = (shape.max_blocks - 1) * shape.tokens_per_block + 1
    prompt = _documents(shape)[0][:length]
    return Ask(prompt, 2, cache_salt=tenant, context_only=shape.context_only)


def _documents(shape: Shape) -> list[tuple[int, ...]]:
    rng = random.Random(f"documents {shape.family}")
    length = shape.max_blocks * shape.tokens_per_block
    return [
        tuple(rng.randrange(1, shape.vocab_size) for _ in range(length))
        for _ in range(shape.num_documents)
    ]


def _talks(rng: random.Random, documents: list[tuple[int, ...]], shape: Shape) -> tuple[Talk, ...]:
    size, answer = shape.tokens_per_block, shape.max_new_tokens
    most = shape.max_blocks - -(-(answer + 1) // size)
    if most < 1 or answer < 2:
        return ()  # no answer would fill a block and leave room for a second turn
    # All of them pass the end of a block in the same iterations.
    num_blocks, missing = rng.randint(1, most), rng.randint(1, min(size, answer) - 1)
    prompt, salt = rng.choice(documents)[: (num_blocks - 1) * size], rng.choice(_SALTS)
    room = (shape.max_blocks - num_blocks) * size + missing - answer
    talks = []
    for _ in range(rng.choice((1, 2, 2))):
        own = tuple(rng.randrange(1, shape.vocab_size) for _ in range(size - missing))
        tail = [rng.randrange(1, shape.vocab_size) for _ in range(rng.randint(1, min(room, size)))]
        talks.append(Talk(Ask(prompt + own, answer, cache_salt=salt), tuple(tail)))
    return tuple(talks)


def _ask(rng: random.Random, documents: list[tuple[int, ...]], shape: Shape) -> Ask:
    size, longest = shape.tokens_per_block, shape.max_blocks * shape.tokens_per_block
    length = rng.randint(1, shape.max_blocks) * size + rng.choice((-1, 0, 0, 1, 1, size // 2))
    length = max(1, min(length, longest))
    if shape.one_left:
        length = min(length // size * size + 1, longest - size + 1)
    kept = rng.choice((length, length, (length // size) * size, rng.randint(0, length)))
    tail = [rng.randrange(1, shape.vocab_size) for _ in range(length - kept)]
    prompt = (*rng.choice(documents)[:kept], *tail)
    stops = (
        frozenset(rng.sample(range(shape.vocab_size), 12)) if rng.random() < shape.stop else None
    )
    return Ask(
        prompt=prompt,
        max_new_tokens=rng.choice((1, 1, 2, rng.randint(1, shape.max_new_tokens))),
        stop_ids=stops or frozenset(),
        cache_salt=rng.choice(_SALTS),
        cancel_after_s=rng.random() * 0.02 if rng.random() < shape.cancel else None,
        context_only=shape.context_only,
    )
