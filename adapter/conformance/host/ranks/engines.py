"""Engines of several ranks, as whoever sends requests sees them.

``TensorParallelEngine``: one engine split over ranks, the leader takes requests (host contract §5,
TP). ``AttentionDpEngine``: ranks with requests of their own that forward together (§5, attention
DP, from E3 on). Both are jobs of real processes: when one rank dies, all do.

Must not know: what ranks say to each other. Any thread of the process that asks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, Final

from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.injection import Deed, Trap
from adapter.conformance.host.ranks.job import Job, JobDiedError
from adapter.conformance.host.ranks.spec import JobSpec, RankStats
from adapter.conformance.host.requests import HostResult

_ANSWER_S: Final = 30.0
_SHUTDOWN_S: Final = 30.0


class RankRequest:
    """A client's grip on a request of a job."""

    def __init__(self, job: Job, rank: int, number: int, answer: Future[Any]) -> None:
        self.rank = rank
        self._job = job
        self._number = number
        self._answer = answer

    def done(self) -> bool:
        """Whether the request has ended, well or not."""
        return self._answer.done()

    def result(self, timeout_s: float) -> HostResult:
        """Wait for the end.

        Args:
            timeout_s: Longest wait in seconds.

        Raises:
            TimeoutError: If the request has not ended by then.
            HostError: If it failed or was cancelled, or a rank died (``JobDiedError``).
        """
        result: HostResult = _within(self._answer, timeout_s)
        return result

    def cancel(self) -> None:
        """End it early; ``result`` then raises ``RequestCancelledError``."""
        self._job.ask(self.rank, "cancel", number=self._number)


class _RankedEngine:
    def __init__(self, spec: JobSpec) -> None:
        self.size = spec.size
        self.job = Job(spec)

    @property
    def is_alive(self) -> bool:
        """Whether every rank's process is there."""
        return self.job.is_alive

    def stats(self, rank: int) -> RankStats:
        """How a rank fares; exact only while nothing runs."""
        stats: RankStats = _within(self.job.ask(rank, "stats"), _ANSWER_S)
        return stats

    def call(self, rank: int, target: str) -> Any:
        """Call ``module:function`` with the rank's ``HostEngine``, in its process.

        Args:
            rank: Which.
            target: What; its result must be picklable.

        Returns:
            What it returned.
        """
        return _within(self.job.ask(rank, "call", target=target), _ANSWER_S)

    def arm(
        self,
        rank: int,
        point: str,
        deed: Deed,
        *,
        seconds: float = 0.0,
        skip: int = 0,
        times: int = 1,
    ) -> None:
        """Make something happen in a rank when it passes a point; see ``injection.Trap``."""
        trap = Trap(point, deed, seconds, skip, times)
        _within(self.job.ask(rank, "arm", trap=trap), _ANSWER_S)

    def disarm(self, rank: int) -> None:
        """Take back what is armed in a rank and has not happened; delays under way end."""
        _within(self.job.ask(rank, "disarm"), _ANSWER_S)

    def delay(self, rank: int, seconds: float, point: str = "bound", *, times: int = 1) -> None:
        """Make a rank late, the next times it passes a point."""
        self.arm(rank, point, "delay", seconds=seconds, times=times)

    def kill(self, rank: int) -> None:
        """End a rank's process by kill -9; the job dies of it."""
        self.job.signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Stop a rank's process (SIGSTOP)."""
        self.job.signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """Let a stopped rank go on (SIGCONT)."""
        self.job.signal(rank, signal.SIGCONT)

    def wait_dead(self, limit_s: float) -> str:
        """Wait until the job has died.

        Args:
            limit_s: Longest wait in seconds.

        Returns:
            What the ranks said of it, and their exit codes.

        Raises:
            TimeoutError: If it lives on.
        """
        self.job.wait(limit_s)
        return "; ".join([*self.job.causes, f"exit codes {self.job.exit_codes}"])

    def shutdown(self) -> None:
        """Cancel what is left, end every rank in order and every process. Idempotent.

        Raises:
            HostError: If a rank could not end in order.
        """
        try:
            if self.job.is_alive:
                answers = [
                    self.job.ask(rank, "shutdown", timeout_s=_SHUTDOWN_S)
                    for rank in range(self.size)
                ]
                for answer in answers:
                    _within(answer, _SHUTDOWN_S + _ANSWER_S)
        finally:
            self.job.close()

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.shutdown()
        except JobDiedError:
            if exc_info[0] is None:
                raise

    def _submit(self, rank: int, **arguments: Any) -> RankRequest:
        number, answer = self.job.ask_numbered(rank, "submit", **arguments)
        return RankRequest(self.job, rank, number, answer)


class TensorParallelEngine(_RankedEngine):
    """An engine split over ranks by attention heads, each rank a process.

    Args:
        llm_args: As of a single rank; ``tensor_parallel_size`` is set to ``size``.
        num_blocks: Pages of each rank's pool.
        size: Ranks.
        options: Of every rank.
        per_rank: Makes a rank's options of these, for ranks that differ (``load_skew``).
        environ: Environment variables of the ranks, beyond those of this process.
        plugins: See ``JobSpec``.
        model: See ``JobSpec``.

    Raises:
        JobDiedError: If the ranks do not come up.
    """

    def __init__(
        self,
        llm_args: LlmArgs,
        num_blocks: int,
        size: int,
        *,
        options: HostOptions | None = None,
        per_rank: Callable[[int, HostOptions], HostOptions] | None = None,
        environ: Mapping[str, str] | None = None,
        plugins: Sequence[str] = (),
        model: str = "",
    ) -> None:
        llm_args = replace(llm_args, tensor_parallel_size=size)
        made = _options(options, per_rank, size)
        settings = {**os.environ, **(environ or {})}
        super().__init__(JobSpec(llm_args, num_blocks, size, made, settings, tuple(plugins), model))

    def __enter__(self) -> TensorParallelEngine:
        return self

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        **further: Any,
    ) -> RankRequest:
        """Ask for a generation; see ``HostEngine.submit``. Refusals come with the result."""
        return self._submit(0, tokens=list(tokens), max_new_tokens=max_new_tokens, **further)

    def forget_reuse(self, timeout_s: float) -> int:
        """Empty every rank's own reuse tree; see ``HostEngine.forget_reuse``."""
        answer = self.job.ask(0, "forget_reuse", timeout_s=timeout_s)
        return int(_within(answer, timeout_s + _ANSWER_S))


class AttentionDpEngine(_RankedEngine):
    """An engine whose ranks have requests, schedulers and pools of their own.

    Args:
        llm_args: As of a single rank; ``enable_attention_dp`` and
            ``tensor_parallel_size`` are set.
        num_blocks: Pages of each rank's pool.
        size: Ranks.
        options: Of every rank; attention DP begins with epoch E3.
        per_rank: Makes a rank's options of these.
        environ: Environment variables of the ranks, beyond those of this process.
        plugins: See ``JobSpec``.

    Raises:
        JobDiedError: If the ranks do not come up.
    """

    def __init__(
        self,
        llm_args: LlmArgs,
        num_blocks: int,
        size: int,
        *,
        options: HostOptions | None = None,
        per_rank: Callable[[int, HostOptions], HostOptions] | None = None,
        environ: Mapping[str, str] | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        llm_args = replace(llm_args, tensor_parallel_size=size, enable_attention_dp=True)
        made = _options(options or HostOptions(epoch="E3"), per_rank, size)
        super().__init__(
            JobSpec(
                llm_args, num_blocks, size, made, {**os.environ, **(environ or {})}, tuple(plugins)
            )
        )

    def __enter__(self) -> AttentionDpEngine:
        return self

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        *,
        rank: int = 0,
        **further: Any,
    ) -> RankRequest:
        """Ask a rank for a generation; see ``HostEngine.submit``."""
        return self._submit(rank, tokens=list(tokens), max_new_tokens=max_new_tokens, **further)

    def forget_reuse(self, timeout_s: float) -> int:
        """Empty every rank's own reuse tree; see ``HostEngine.forget_reuse``.

        Returns:
            Pages given up, over all ranks.
        """
        answers = [
            self.job.ask(rank, "forget_reuse", timeout_s=timeout_s) for rank in range(self.size)
        ]
        return sum(int(_within(answer, timeout_s + _ANSWER_S)) for answer in answers)


def _options(
    options: HostOptions | None,
    per_rank: Callable[[int, HostOptions], HostOptions] | None,
    size: int,
) -> tuple[HostOptions, ...]:
    common = options or HostOptions()
    return tuple(common if per_rank is None else per_rank(rank, common) for rank in range(size))


def _within(answer: Future[Any], limit_s: float) -> Any:
    try:
        return answer.result(limit_s)
    except FutureTimeoutError:
        if answer.done():
            raise  # on newer interpreters it is the same class as what an answer may hold
        raise TimeoutError(f"no answer within {limit_s} s") from None
