"""The facade: an engine with a model, a pool and, if configured, a connector.

Brings everything up in the order of host contract §4, takes requests from any
thread, and shuts down in an order that ends every thread it started. One rank of
a job, alone by default; combinations the real host refuses (§11) are refused here.

Must not know: what a connector does. Constructed on the caller's (main) thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path

import torch

from adapter.conformance.host.comm import Communicator, Solo
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.construction import playing
from adapter.conformance.host.device import Device
from adapter.conformance.host.drafts import Drafter
from adapter.conformance.host.errors import ConnectorContractError, HostError
from adapter.conformance.host.estimation import estimate
from adapter.conformance.host.executor import Executor
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.hardware import make_hardware
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.iteration import Parts
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.managers import make_manager, tokens_per_block
from adapter.conformance.host.model import KV_DTYPES, Transformer
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import (
    HostRequest,
    Multimodal,
    RequestHandle,
    RequestParams,
)
from adapter.conformance.host.support import settle
from adapter.conformance.host.weights import read_model_dir


@dataclass(frozen=True)
class HostStats:
    """Counters since start.

    Attributes:
        num_computed_tokens: Tokens run through forwards.
        num_available_blocks: Pages that could be handed out now.
        num_saving_pages: Pages held for the connector's saves.
        num_evicted_blocks: Cached pages given up for others.
    """

    num_iterations: int
    num_forwards: int
    num_finished: int
    num_computed_tokens: int
    num_available_blocks: int
    num_saving_pages: int
    num_evicted_blocks: int


class HostEngine:
    """A small inference engine that keeps TensorRT-LLM's connector contract.

    Sets torch's threads to one for the process: equal bits need equal shapes, and
    the streams are threads already.

    Args:
        llm_args: Model directory, cache settings, connector.
        num_blocks: Pages of the pool; of each layer group with a V2 cache.
        model: Forward to run; None reads the transformer from ``llm_args.model``.
        options: Version and scheduling switches. Overlap is off if either these or
            ``llm_args.disable_overlap_scheduler`` say so.
        comm: To the other ranks of the job. Requests are the leader's to take, or under
            attention DP any rank's.

    Attributes:
        pool: What a connector is given: the KV pool tensor
            ``[num_blocks, num_layers, kv_factor, elements]``, or the layout of a V2 cache.
        allocator: The manager of the pages.
        cache: Who holds which page.
        connector: The port to scheduler and worker objects.
        hooks: Durations of every hook.

    Raises:
        ValueError: If ``llm_args`` ask for what this host (or the real one) refuses.
    """

    def __init__(
        self,
        llm_args: LlmArgs,
        num_blocks: int,
        *,
        model: ForwardModel | None = None,
        options: HostOptions | None = None,
        comm: Communicator | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.llm_args = llm_args
        self._comm: Communicator = comm or Solo()
        self._adp = llm_args.enable_attention_dp
        options = settle(llm_args, options or HostOptions(), self._comm.size)
        self.options = options
        self.model = model or _read_model(llm_args, options)
        self.allocator = make_manager(self.model, num_blocks, llm_args, options)
        self.cache = self.allocator.cache
        hardware = make_hardware(options, self._comm.rank)
        self._device = Device(self.model, self.allocator.memory(hardware), hardware)
        self.pool = self._device.pool
        self.hooks = HookRecorder()
        self._ids = itertools.count(1)
        try:
            with playing(options.epoch):
                self._bring_up()
        except BaseException:
            self._device.close()
            raise
        self._executor.start()

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        *,
        stop_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        lora_task_id: int | None = None,
        multimodal: Multimodal | None = None,
        context_only: bool = False,
        generation_only: bool = False,
        retention_priority: int | None = None,
    ) -> RequestHandle:
        """Ask for a generation; any thread.

        Args:
            tokens: Prompt token ids, at least one.
            max_new_tokens: Tokens to generate at most, at least one.
            stop_ids: Generation ends with the first of these.
            cache_salt: Keeps the cache of tenants apart.
            lora_task_id: LoRA adapter; the model here ignores it, the cache must not.
            multimodal: Media of the prompt.
            context_only: One token, then the KV belongs to another engine (§6).
            generation_only: No connector is asked: its KV is another engine's.
            retention_priority: Of its pages.

        Returns:
            A handle to wait on.

        Raises:
            ValueError: If the request could never run on this engine.
            HostError: If it is another rank's to take.
        """
        params = RequestParams(
            tuple(tokens),
            1 if context_only else max_new_tokens,
            frozenset(stop_ids),
            cache_salt,
            lora_task_id,
            multimodal,
            context_only,
            generation_only,
            retention_priority,
        )
        self._check(params)
        request = self._adopt(next(self._ids), params)
        self._executor.submit(request)
        return request.handle

    def cancel(self, handle: RequestHandle) -> None:
        """End a request early; its handle raises ``RequestCancelledError``."""
        self._executor.cancel(handle.request_id)

    def forget_reuse(self, timeout_s: float) -> int:
        """Empty the host's own reuse tree, so that only a connector can offer anything.

        Waits until nothing runs and no page is held for a save: iterations with an
        empty batch go round meanwhile, each polling ``get_finished``, as they would
        with other requests about. So afterwards every save that
        ``request_finished`` was told of has ended.

        Args:
            timeout_s: Longest wait in seconds.

        Returns:
            Pages given up.

        Raises:
            TimeoutError: If requests or saves did not end by then; the tree is
                emptied when they do.
            ExecutorDiedError: If the executor is gone.
        """
        try:
            return self._executor.forget_reuse().result(timeout_s)
        except FutureTimeoutError:
            raise TimeoutError(
                f"requests or saves did not end within {timeout_s} s; pages held for saves: "
                f"{self._executor.ledger.num_saving_pages}"
            ) from None

    @property
    def device(self) -> Device:
        """Streams and pool; for checks that look at an exact point."""
        return self._device

    @property
    def num_pages(self) -> int:
        """Pages of the pool, over all groups."""
        return self.allocator.num_pages

    @property
    def error(self) -> BaseException | None:
        """What the executor died of, or None."""
        return self._executor.error

    def stats(self) -> HostStats:
        """Counters; exact only while nothing runs."""
        return HostStats(
            num_iterations=self._executor.num_iterations,
            num_forwards=self._executor.num_forwards,
            num_finished=self._executor.finisher.num_finished,
            num_computed_tokens=self._executor.num_computed_tokens,
            num_available_blocks=self.cache.num_available,
            num_saving_pages=self._executor.ledger.num_saving_pages,
            num_evicted_blocks=self.cache.num_evicted,
        )

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Cancel what is left and end every thread. Idempotent.

        Args:
            timeout_s: Longest wait for the executor in seconds.

        Raises:
            TimeoutError: If a hook keeps the executor.
        """
        self._executor.stop(timeout_s)
        self.connector.shutdown()
        self._device.close()

    def __enter__(self) -> HostEngine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def _bring_up(self) -> None:
        # Host contract §4: the order is the contract's.
        options, comm = self.options, self._comm
        port = ConnectorPort.construct(self.llm_args, self.hooks, options, comm, adp=self._adp)
        self.connector = port
        if options.estimate_kv:
            estimate(self.model, self._device, port, options.stream_timeout_s)
        self._device.warm_up(port, options.stream_timeout_s)
        self._executor = self._make_executor()
        port.register(self.pool)

    def _adopt(self, request_id: int, params: RequestParams) -> HostRequest:
        memo, handle = self.model.new_memo(params.prompt), RequestHandle(request_id)
        return HostRequest(request_id, params, handle, memo, tokens=list(params.prompt))

    def _make_executor(self) -> Executor:
        port, device = self.connector, self._device
        scheduler = self.allocator.scheduler(port, device)
        drafter, options = None, self.options
        if options.num_drafts:
            size = self.cache.tokens_per_block
            drafter = Drafter(self.model, self.num_pages, size, options.num_drafts)
        parts = Parts(scheduler, self.cache, port, device, options, self._comm, self._adp, drafter)
        return Executor(parts, self._adopt)

    def _check(self, params: RequestParams) -> None:
        if self._comm.rank and not self._adp:
            raise HostError(f"rank {self._comm.rank} takes no requests: ask the leader")
        if params.generation_only and self.connector.present and self.options.layout == "v1":
            # Host contract §6.
            raise ConnectorContractError("a generation-only request with a connector on V1")
        if not params.prompt or params.max_new_tokens < 1:
            raise ValueError("a request needs a prompt and max_new_tokens >= 1")
        length = len(params.prompt) + params.max_new_tokens + self.options.headroom
        if length > self.model.max_seq_len:
            raise ValueError(f"{length} tokens, but the model holds {self.model.max_seq_len}")
        in_one = self.options.layout == "v2" and not self.llm_args.enable_chunked_prefill
        most = self.llm_args.max_num_tokens
        if in_one and length - 1 > most:  # a replay computes the answer with the prompt
            raise ValueError(
                f"{length} tokens without chunked prefill, of which a forward has {most}"
            )
        size = self.cache.tokens_per_block
        blocks, most = -(-(length - 1) // size), self.allocator.num_tokens // size
        if blocks > most:
            raise ValueError(f"{blocks} pages needed, the pool has {most}")


def _read_model(llm_args: LlmArgs, options: HostOptions) -> ForwardModel:
    config, weights = read_model_dir(Path(llm_args.model))
    size, dtype = tokens_per_block(llm_args, options), llm_args.kv_cache_config.dtype
    return Transformer(config, weights, size, kv_dtype=KV_DTYPES[dtype])
