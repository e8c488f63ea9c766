"""The conformance host on a simulated device, held at the point where a planted mistake shows.

Needs torch. Runs in the pytest process; the server and its copiers are children.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.kit.bench import Probe
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.service import Service, serving
from adapter.conformance.schedules.setups import Setup, opened, setup_of
from adapter.conformance.schedules.subject import SoloSubject
from adapter.conformance.schedules.sweep import join

WAIT_S = 30.0
BLOCK = 16
_NUMBERS = itertools.count(1)


class Player:
    """An engine whose iterations a test can hold, and what is right of its answers."""

    def __init__(self, subject: SoloSubject, probe: Probe, right: Callable[[Ask], Any]) -> None:
        self.subject = subject
        self.probe = probe
        self.host: HostEngine = subject.engine
        self._right = right

    def submit(self, ask: Ask) -> Any:
        return self.subject.submit(ask)

    def store(self, ask: Ask, may_be_wrong: bool = False) -> None:
        """Asks, waits until what can be saved is, and empties the host's own cache."""
        is_right = self.is_right(ask, self.submit(ask).result(WAIT_S))
        assert is_right or may_be_wrong
        self.subject.forget_reuse(WAIT_S)

    def is_right(self, ask: Ask, answer: Any) -> bool:
        """Whether tokens and logits equal those of an engine without a cache, bit for bit."""
        wanted = self._right(ask)
        pairs = zip(answer.logits, wanted.logits, strict=True)
        return answer.tokens == wanted.tokens and all(torch.equal(a, b) for a, b in pairs)

    def loads_rightly(self, ask: Ask, num_tokens: int) -> bool:
        """Asks again; what is saved must be loaded."""
        answer = self.submit(ask).result(WAIT_S)
        assert answer.num_loaded_tokens == num_tokens
        return self.is_right(ask, answer)

    def gauge(self, name: str) -> int:
        """A value of the server."""
        return self.subject.look()[0].server[name]

    def awaits(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> bool:
        """Polls."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.005)
        return True


class Stage:
    """A server for engines on simulated devices, and the engine that tells what is right."""

    def __init__(self, service: Service, models: Path, stack: ExitStack) -> None:
        self.service = service
        self._models = models
        self._stack = stack
        self._references: dict[tuple[Any, ...], Any] = {}

    @contextmanager
    def engine(
        self, epoch: str, layout: str, mode: str, num_blocks: int = 0, **options: Any
    ) -> Iterator[Player]:
        """An engine that has joined, alone on device 0."""
        setup = setup_of(Combination(epoch, "plain", layout, mode, "1"), "simulated")
        probe = Probe()
        setup = replace(
            setup,
            options=replace(setup.options, probe=probe, **options),
            num_blocks=num_blocks or setup.num_blocks,
        )
        right = self._reference(setup)
        with opened(setup, self._models, self.service.url) as subject:
            assert isinstance(subject, SoloSubject)
            join(subject, setup)
            yield Player(subject, probe, right)

    def _reference(self, setup: Setup) -> Callable[[Ask], Any]:
        key = setup.reference_key
        if key not in self._references:
            self._references[key] = self._stack.enter_context(opened(setup, self._models, None))
        reference = self._references[key]
        return lambda ask: reference.submit(ask).result(WAIT_S)


@contextmanager
def staged(environ: Mapping[str, str], models: Path) -> Iterator[Stage]:
    """A server of its own; ``environ`` is that of the simulated devices."""
    with serving(environ) as service, ExitStack() as stack:
        yield Stage(service, models, stack)


def ask_anew(num_blocks: int = 3, max_new_tokens: int = 2) -> Ask:
    """A request that nobody asked before: whole blocks and a few tokens.

    More than one, for a forward of one token may be a replayed graph, without layer hooks.
    """
    seed = next(_NUMBERS)
    prompt = tuple(1 + (seed * 37 + i * i) % 249 for i in range(num_blocks * BLOCK + 3))
    return Ask(prompt, max_new_tokens, cache_salt=f"tenant {seed}")


class Gate:
    """Holds streams until it is opened, at the latest after a while."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def hold(self, stream: Any) -> None:
        stream.enqueue(lambda: self._event.wait(WAIT_S))

    def open(self) -> None:
        self._event.set()

    def open_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._event.set)
        timer.daemon = True
        timer.start()
