"""What a job is started with, and what its processes say to whoever started it.

Must not know: sockets, engines. Plain data that can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adapter.conformance.host.engine import HostStats
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions


@dataclass(frozen=True)
class JobSpec:
    """One engine of several ranks.

    Attributes:
        llm_args: Of the whole engine.
        num_blocks: Pages of each rank's pool.
        size: Ranks.
        options: Of each rank.
        environ: Environment variables of the ranks: all that they have.
        plugins: ``module:function``, called in each rank's process before its engine is
            made, with the rank and its ``Injector``.
        model: ``module:function``, called with rank and size for the forward that a rank runs;
            empty for the model that ``llm_args`` name.
    """

    llm_args: LlmArgs
    num_blocks: int
    size: int
    options: tuple[HostOptions, ...]
    environ: dict[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    model: str = ""


@dataclass(frozen=True)
class RankStats:
    """How one rank fares.

    Attributes:
        host: Its host's counters.
        connector: Its connector's counters, by name.
        hooks: Durations of its hooks, as ``HookRecorder.as_rows``.
        passes: How often each point was passed.
    """

    host: HostStats
    connector: dict[str, int]
    hooks: list[dict[str, object]]
    passes: dict[str, int]


@dataclass(frozen=True)
class Ask:
    """To a rank: call something and answer."""

    number: int
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """From a rank.

    Attributes:
        number: Of what was asked; 0 tells that the rank serves.
        value: What it returned, or the exception it raised.
    """

    number: int
    value: Any
    is_error: bool = False


@dataclass(frozen=True)
class Dying:
    """From a rank: its executor died, and the process is about to.

    Attributes:
        reason: The error and its causes.
    """

    reason: str


@dataclass(frozen=True)
class Started:
    """From the launcher: it is there."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """From the launcher: a rank's process is gone.

    Attributes:
        code: Exit code; below 0 the signal that ended it.
    """

    rank: int
    code: int
