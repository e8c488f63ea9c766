"""What is asked, in which order, and what a cache that loses nothing must hit.

agentic-144 is a reconstruction of a published workload (144 requests, "0 to about 88 %"): S agents
take T turns, turn by turn, one request at a time. All prompts begin with the same system prompt; a
turn appends a message, and the engine's answer follows it. Lengths are in blocks, so that the
counts are the same for every block size.

Must not know: engines, servers, time. Plain arithmetic; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

VOCAB_SIZE: Final = 32_000
_SHARED: Final = "system"


@dataclass(frozen=True)
class Turn:
    """One request.

    Attributes:
        agent: who asks.
        turn: of how many before it.
        num_tokens: of the prompt.
    """

    agent: int
    turn: int
    num_tokens: int


@dataclass(frozen=True)
class Workload:
    """Lengths of everything.

    Attributes:
        block_tokens: tokens of a block; even.
        agents: conversations.
        turns: requests of each.
        system_blocks: blocks that all prompts begin with.
        message_halves: half blocks that a turn's message takes.
        answer_halves: half blocks that an answer takes.
    """

    block_tokens: int
    agents: int = 12
    turns: int = 12
    system_blocks: int = 4
    message_halves: int = 3
    answer_halves: int = 3

    def __post_init__(self) -> None:
        """Refuses odd blocks: half of one must be a number of tokens."""
        if self.block_tokens < 2 or self.block_tokens % 2:
            raise ValueError(f"block_tokens is {self.block_tokens}, valid are even numbers")

    @property
    def answer_tokens(self) -> int:
        """Tokens of one answer."""
        return self.answer_halves * self.block_tokens // 2

    @property
    def system_tokens(self) -> int:
        """Tokens that all prompts share."""
        return self.system_blocks * self.block_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""
        return self._prompt_tokens(self.turns - 1)

    @property
    def distinct_blocks(self) -> int:
        """Blocks that differ, answers included: what a cache must have room for."""
        longest = self.max_prompt_tokens + self.answer_tokens
        return self.system_blocks + self.agents * (
            longest // self.block_tokens - self.system_blocks
        )

    def order(self) -> list[Turn]:
        """All requests: everybody's first turn, then everybody's second, and so on."""
        return [
            Turn(agent, turn, self._prompt_tokens(turn))
            for turn in range(self.turns)
            for agent in range(self.agents)
        ]

    def message(self, turn: Turn) -> list[int]:
        """Tokens that a turn adds; the first one begins with the system prompt."""
        own = f"agent {turn.agent}"
        if turn.turn == 0:
            first = _tokens(_SHARED, 0, self.system_tokens)
            return first + _tokens(own, self.system_tokens, turn.num_tokens)
        return _tokens(own, turn.num_tokens - self._message_tokens, turn.num_tokens)

    def answer(self, turn: Turn) -> list[int]:
        """What the workload says a turn was answered, where the engine's answer is not taken."""
        end = turn.num_tokens + self.answer_tokens
        return _tokens(f"agent {turn.agent}", turn.num_tokens, end)

    def expected_hits(self, *, saves_answers: bool) -> list[int]:
        """Blocks that each request finds, in a cache that was empty and never evicts.

        Args:
            saves_answers: blocks of answers are saved too, not only those of prompts.

        Returns:
            One count per request of ``order``: leading blocks saved before, never the whole prompt.
        """
        saved: dict[int, int] = {}
        hits = []
        for turn in self.order():
            shared = self.system_blocks if saved else 0
            found = saved.get(turn.agent, shared)
            hits.append(min(found, (turn.num_tokens - 1) // self.block_tokens))
            more = self.answer_tokens if saves_answers else 0
            saved[turn.agent] = (turn.num_tokens + more) // self.block_tokens
        return hits

    @property
    def _message_tokens(self) -> int:
        return self.message_halves * self.block_tokens // 2

    def _prompt_tokens(self, turn: int) -> int:
        both = self._message_tokens + self.answer_tokens
        return self.system_tokens + turn * both + self._message_tokens


def blocks(turns: Sequence[Turn], block_tokens: int) -> list[int]:
    """Whole blocks of each prompt."""
    return [turn.num_tokens // block_tokens for turn in turns]


def _tokens(stream: str, begin: int, end: int) -> list[int]:
    """Token ids that depend on stream and position alone."""
    return [
        int.from_bytes(blake2b(f"{stream}/{position}".encode(), digest_size=8).digest(), "little")
        % VOCAB_SIZE
        for position in range(begin, end)
    ]
