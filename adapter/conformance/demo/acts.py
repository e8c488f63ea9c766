"""The acts of the demo about text: what is done, and what must then be true.

Hits are compared with a perfect cache, logits with an engine that has no cache.

Must not know: how outcomes are shown. Runs in the demo's main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adapter.conformance.demo.cast import EXACT, Answer, Engine, Server
from adapter.conformance.demo.expected import PerfectCache
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import DemoError, Stage
from adapter.conformance.demo.texts import Prompt, prompts
from adapter.conformance.host.weights import ModelConfig, write_model_dir

TOKENS_PER_BLOCK: Final = 16
MAX_NEW_TOKENS: Final = 24
HOOK_LIMIT_MS: Final = 50.0
"""No hook without a load in it may take longer (design rule 7)."""

BOUNDED_S: Final = 5.0
"""A request without a server must be answered within this; it takes well under one second."""

RETURN_S: Final = 30.0
"""Within this an engine must be cached again once a server is back."""

_LARGE_POOL: Final = 512
Report = Callable[[int, int], None]
"""Told the parts of an act that are done, and how many there are."""


@dataclass
class Asked:
    """A prompt with the answer that a perfect cache would give room for."""

    answer: Answer
    expected_tokens: int

    @property
    def is_exact(self) -> bool:
        """Whether all came from the server that could, and nothing else did."""
        answer = self.answer
        return answer.num_loaded_tokens == self.expected_tokens and not answer.num_device_tokens


class TextActs:
    """Reference, engine A, engine B, a server lost and a server found.

    Args:
        on: The run's stage.
        num_prompts: How many conversations.
    """

    def __init__(self, on: Stage, num_prompts: int) -> None:
        self._on = on
        self.model = write_model_dir(on.folder / "model", ModelConfig())
        self._prompts = prompts(num_prompts)
        self._longer: list[Prompt] = []
        self._answers: dict[str, list[int]] = {}
        self._cache = PerfectCache(TOKENS_PER_BLOCK)
        self._server: Server | None = None
        self._engine: Engine | None = None

    @property
    def server(self) -> Server:
        """The server that lives now.

        Raises:
            DemoError: If there is none.
        """
        if self._server is None:
            raise DemoError("there is no server")
        return self._server

    @property
    def engine_b(self) -> Engine:
        """The second engine.

        Raises:
            DemoError: Before its act.
        """
        if self._engine is None:
            raise DemoError("there is no engine B")
        return self._engine

    def launch(self, outcome: Outcome, report: Report) -> None:
        """Start the server."""
        server = self._server = Server(self._on, "server-1")
        outcome.claim("the server is up and says so in one line", server.url in server.line)
        outcome.figures |= {"server_start_s": server.start_s, "server_line": server.line}
        outcome.summary = f"ready in {server.start_s:.2f} s, pid {server.pid}"

    def reference(self, outcome: Outcome, report: Report) -> None:
        """Compute every prompt without any cache, and the longer ones that follow from it."""
        engine = self._start("reference", None, _LARGE_POOL)
        engine.submit([(p.name, p.tokens) for p in self._prompts], MAX_NEW_TOKENS)
        answers = engine.collect(compare=False)
        report(1, 2)
        self._longer = [
            prompt.longer(answer.tokens)
            for prompt, answer in zip(self._prompts, answers, strict=True)
        ]
        engine.submit([(p.name, p.tokens) for p in self._longer], MAX_NEW_TOKENS)
        answers += engine.collect(compare=False)
        engine.stop()
        self._answers = {answer.name: answer.tokens for answer in answers}
        reused = sum(a.num_device_tokens + a.num_loaded_tokens for a in answers)
        computed = sum(a.num_computed_tokens for a in answers)
        outcome.claim("every token computed, nothing reused", not reused and computed > 0)
        outcome.figures |= {"requests": len(answers), "computed_tokens": computed}
        outcome.summary = f"{len(answers)} prompts, {computed:,} tokens computed"

    def engine_a(self, outcome: Outcome, report: Report) -> None:
        """Prefill and generate in a first engine, let it save, and kill it."""
        engine = self._start("engine-A", self.server.url, _LARGE_POOL, EXACT)
        engine.submit([(p.name, p.tokens) for p in self._prompts], MAX_NEW_TOKENS)
        answers = engine.collect()
        report(1, 2)
        settle_s = engine.settle()
        figures = engine.figures()
        killed = engine.kill_9()
        for prompt, answer in zip(self._prompts, answers, strict=True):
            self._cache.add([*prompt.tokens, *answer.tokens])
        outcome.claim("logits equal the reference, bit for bit", self._equal(answers))
        outcome.claim("it was ended by kill -9, a moment after its saves", killed)
        self._hooks(outcome, figures)
        outcome.figures |= {"requests": len(answers), "settle_s": settle_s}
        outcome.summary = f"{len(answers)} prompts at once, saved {settle_s * 1e3:.0f} ms later"

    def cold_engine(self, outcome: Outcome, report: Report) -> None:
        """Ask a second, empty engine the same and longer prompts, twice."""
        texts = [text for pair in zip(self._prompts, self._longer, strict=True) for text in pair]
        longest = max(len(text.tokens) for text in texts) + MAX_NEW_TOKENS - 1
        pool = -(-longest // TOKENS_PER_BLOCK)
        engine = self._engine = self._start("engine-B", self.server.url, pool, EXACT)
        asked: list[Asked] = []
        for _ in range(2):
            for text in texts:
                asked.append(self._ask(text))
                report(len(asked), 2 * len(texts))
        answers = [one.answer for one in asked]
        loaded = sum(answer.num_loaded_tokens for answer in answers)
        blocks = loaded // TOKENS_PER_BLOCK
        num_bytes = blocks * engine.page_bytes
        num_hits = sum(answer.num_loaded_tokens > 0 for answer in answers)
        outcome.claim(
            "every full block that was ever computed came from the server, none from its own pool",
            all(one.is_exact and one.expected_tokens > 0 for one in asked),
        )
        outcome.claim("logits equal the reference, bit for bit", self._equal(answers))
        self._hooks(outcome, engine.figures())
        prompt_tokens = 2 * sum(len(text.tokens) for text in texts)
        outcome.figures |= {
            "requests": len(asked),
            "pool_pages": pool,
            "hits": num_hits,
            "hit_blocks": blocks,
            "loaded_bytes": num_bytes,
            "prompt_tokens": prompt_tokens,
            "loaded_tokens": [answer.num_loaded_tokens for answer in answers],
            "expected_tokens": [one.expected_tokens for one in asked],
        }
        outcome.summary = (
            f"{num_hits} of {len(asked)} hit, {blocks:,} blocks, {num_bytes / 1e6:.1f} MB loaded, "
            f"{loaded / prompt_tokens:.0%} of all prompt tokens"
        )

    def open_offer(self, outcome: Outcome, report: Report) -> None:
        """Kill the server while the engine stands between an offer and its load."""
        engine, held, fresh = self.engine_b, self._prompts[0], self._prompts[-1]
        expected = self._cache.hit_tokens(held.tokens)
        engine.submit([(held.name, held.tokens)], MAX_NEW_TOKENS, hold_offer=True)
        offered = engine.wait_for_offer()
        killed = self.server.kill_9()
        self._server = None
        engine.go_on()
        (answer,) = engine.collect()
        engine.settle()
        report(1, 2)
        loaded = answer.num_loaded_tokens
        outcome.claim(
            "the open offer was loaded whole from the engine's own mapping",
            offered and killed and loaded == expected > 0,
        )
        uncached = engine.ask(fresh.name, fresh.tokens, MAX_NEW_TOKENS)
        outcome.claim(
            f"the next request was computed uncached, within {BOUNDED_S:.0f} s",
            uncached.num_loaded_tokens == 0 and uncached.seconds < BOUNDED_S,
        )
        outcome.claim("logits equal the reference, bit for bit", self._equal([answer, uncached]))
        self._hooks(outcome, engine.figures())
        outcome.figures |= {
            "loaded_tokens": loaded,
            "expected_tokens": expected,
            "uncached_request_s": uncached.seconds,
        }
        outcome.summary = (
            f"{loaded // TOKENS_PER_BLOCK} blocks loaded from a dead server, "
            f"next request in {uncached.seconds * 1e3:.0f} ms"
        )

    def next_server(self, outcome: Outcome, report: Report) -> None:
        """Start another server and ask until the same engine is cached again."""
        server = self._server = Server(self._on, "server-2")
        ready_s = time.monotonic()
        engine, text = self.engine_b, self._prompts[-1]
        cache = PerfectCache(TOKENS_PER_BLOCK)
        cache.add([*text.tokens, *self._answers[text.name]])
        expected = cache.hit_tokens(text.tokens)
        answers: list[Answer] = []
        while not answers or answers[-1].num_loaded_tokens != expected:
            if time.monotonic() > ready_s + RETURN_S:
                break
            answers.append(engine.ask(text.name, text.tokens, MAX_NEW_TOKENS))
        back_s = time.monotonic() - ready_s
        outcome.claim(
            f"the same engine process hits again by itself, within {RETURN_S:.0f} s",
            answers[-1].num_loaded_tokens == expected,
        )
        outcome.claim("logits equal the reference, bit for bit", self._equal(answers))
        self._hooks(outcome, engine.figures())
        engine.stop()
        outcome.figures |= {
            "server_start_s": server.start_s,
            "back_s": back_s,
            "requests": len(answers),
        }
        outcome.summary = f"hits again {back_s:.2f} s after the server, {len(answers)} requests"

    def _start(
        self,
        name: str,
        url: str | None,
        num_blocks: int,
        settings: Mapping[str, str] | None = None,
    ) -> Engine:
        return Engine(
            self._on,
            name,
            model=self.model,
            url=url,
            num_blocks=num_blocks,
            tokens_per_block=TOKENS_PER_BLOCK,
            settings=settings,
        )

    def _ask(self, text: Prompt) -> Asked:
        expected = self._cache.hit_tokens(text.tokens)
        answer = self.engine_b.ask(text.name, text.tokens, MAX_NEW_TOKENS)
        self._cache.add([*text.tokens, *answer.tokens])
        return Asked(answer, expected)

    def _equal(self, answers: Sequence[Answer]) -> bool:
        return all(
            answer.logits_equal
            and answer.num_logits == MAX_NEW_TOKENS
            and answer.tokens == self._answers[answer.name]
            for answer in answers
        )

    def _hooks(self, outcome: Outcome, figures: dict[str, object]) -> None:
        longest_ms = float(str(figures["longest_hook_ms"]))
        outcome.figures |= {
            "longest_hook_ms": longest_ms,
            "longest_hook": str(figures["longest_hook"]),
        }
