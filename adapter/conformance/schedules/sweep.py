"""Plays many schedules over many combinations, each against its reference.

References are kept while a sweep lasts, for engines that compute alike share one. Must not know:
what is shown. Runs in the caller's thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import variant_of
from adapter.conformance.host.llm_args import KvCacheConnectorConfig
from adapter.conformance.host.options import DeviceName
from adapter.conformance.schedules.draw import Ask, draw, repeatable
from adapter.conformance.schedules.leaks import of_host, of_kvkeep
from adapter.conformance.schedules.play import PlayError, Tally, play, play_again
from adapter.conformance.schedules.reference import Reference
from adapter.conformance.schedules.setups import Setup, opened, setup_of
from adapter.conformance.schedules.subject import Subject

_JOIN_S: Final = 20.0
_POLL_S: Final = 0.05
_MAX_REFERENCES: Final = 3
"""Kept at once: each may be several processes."""


class Sweep:
    """A run; used as a context, which ends every engine."""

    def __init__(
        self,
        url: str | None,
        models: Path,
        device: DeviceName | None = None,
        connector: KvCacheConnectorConfig | None = None,
    ) -> None:
        """Starts nothing.

        Args:
            url: of our own server, which all engines share; None with another connector.
            models: folder for model directories.
            device: of the engines, not of the references; None is the host's default.
            connector: another one than ours: what it leaves behind is looked for in the host alone.
        """
        self._url = url
        self._connector = connector
        self._models = models
        self._device = device
        self._references: dict[tuple[Any, ...], tuple[ExitStack, Reference]] = {}
        self._runs = itertools.count()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._references:
            self._references.popitem()[1][0].close()

    def run(self, combination: Combination, seeds: Iterable[int], tally: Tally) -> None:
        """Plays some schedules on the engine of one combination, and one request that must load.

        Args:
            combination: legal.
            seeds: one schedule each; the first one draws the host's variant, too.
            tally: counts what is seen.

        Raises:
            PlayError: an answer was wrong, something was left behind, or nothing is ever loaded.
        """
        seeds = list(seeds)
        variant = variant_of(combination, seeds[0] if seeds else None)
        setup = setup_of(combination, self._device, seeds[0] if seeds else None)
        expected = self._reference(setup)
        leaks = of_kvkeep if self._connector is None else of_host
        with opened(setup, self._models, self._url, self._connector) as subject:
            if self._connector is None:
                join(subject, setup)
            try:
                for seed in seeds:
                    play(draw(seed, setup.shape), subject, expected, tally, leaks)
                tenant = f"{combination.test_id} {next(self._runs)}"
                play_again(repeatable(setup.shape, tenant), subject, expected, tally)
            except PlayError as error:
                name = f"{combination.test_id}: {error}"
                raise type(error)(f"{name} (host: {variant.name})") from error

    def _reference(self, setup: Setup) -> Reference:
        key = setup.reference_key
        if key not in self._references:
            while len(self._references) >= _MAX_REFERENCES:
                self._references.pop(next(iter(self._references)))[0].close()
            stack = ExitStack()
            engine = stack.enter_context(opened(setup, self._models, None))
            self._references[key] = stack, Reference(engine)
        return self._references[key][1]


def join(subject: Subject, setup: Setup, num_others: int = 0) -> None:
    """Waits until every rank is registered and has mapped what it was given.

    The other ranks join with the first metadata, so something is asked first.

    Args:
        subject: an engine with a connector.
        setup: how it was built.
        num_others: registrations of other engines that the server holds.

    Raises:
        PlayError: it did not join in time.
    """
    end_s = time.monotonic() + _JOIN_S
    while True:
        for _ in range(setup.size if setup.is_adp else 1):
            subject.submit(Ask((1, 2, 3), 1)).result(_JOIN_S)
        values = subject.look()[0].server
        if (
            values.get("sessions") == setup.size + num_others
            and values.get("extents_unmapped") == 0
        ):
            return
        if time.monotonic() > end_s:
            raise PlayError(f"the engine did not join: {values}")
        time.sleep(_POLL_S)
