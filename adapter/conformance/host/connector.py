"""Calls into a connector: construction, every hook, and who answers on which rank.

Each hook is timed. The leader's scheduler answers for all ranks: its answers and metadata are
pickled and broadcast; page callbacks reach the leader only (host contract §5). From E3 on a
raising hook is a ``ConnectorFailedError`` wherever it happens (§10).

Must not know: batches, pages, streams beyond passing them on. Construction runs
on two threads, everything else on the executor's (registration: the main one).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from adapter.conformance.host import answers
from adapter.conformance.host.comm import Communicator, Solo
from adapter.conformance.host.construction import check_groups, check_prefix_loads, construct
from adapter.conformance.host.errors import ConnectorFailedError
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostRequest, LlmRequestView


class ConnectorPort:
    """One rank's side of one connector, or of none.

    Args:
        scheduler: The connector's scheduler object; None on followers and without a connector.
        worker: The connector's worker object, None without a connector.
        recorder: Takes the duration of each hook.
        options: Version switches.
        comm: Carries the leader's answers; alone under attention DP.
    """

    def __init__(
        self,
        scheduler: Any,
        worker: Any,
        recorder: HookRecorder,
        options: HostOptions,
        comm: Communicator | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.recorder = recorder
        self._options = options
        self._comm: Communicator = comm or Solo()
        self._is_v2 = options.layout == "v2"
        self._forward_callable: Callable[..., Any] | None = None

    @classmethod
    def construct(
        cls,
        llm_args: Any,
        recorder: HookRecorder,
        options: HostOptions,
        comm: Communicator | None = None,
        *,
        adp: bool = False,
    ) -> ConnectorPort:
        """Construct this rank's classes (host contract §4, steps 2 and 3).

        Args:
            llm_args: Names module and classes in ``kv_connector_config``; without
                one the port answers as if nothing were ever cached.
            recorder: Takes the duration of each hook.
            options: Version switches.
            comm: Between the ranks of the engine.
            adp: Whether attention is data parallel: every rank has its own scheduler.

        Returns:
            The port; the forward callable has been asked for.

        Raises:
            ValueError: If attention is data parallel and a class has not opted in, or some of
                E4's methods for reserved prefixes are there, but not all.
        """
        comm = comm or Solo()
        if llm_args.kv_connector_config is None:
            return cls(None, None, recorder, options, comm)
        scheduler, worker = construct(llm_args, has_scheduler=adp or comm.rank == 0, adp=adp)
        if options.epoch == "E4":
            check_prefix_loads(scheduler, worker)
        port = cls(scheduler, worker, recorder, options, Solo(comm.rank) if adp else comm)
        with port._hook("register_forward_pass_callable"):
            port._forward_callable = port.worker.register_forward_pass_callable()
        return port

    @property
    def present(self) -> bool:
        """Whether there is a connector."""
        return self.worker is not None

    def register(self, cache: Any) -> None:
        """Hand over the final pool, then let the scheduler wait for it (§4, step 6).

        Args:
            cache: The pool tensor, or the ``KvCacheLayout`` of a V2 cache.

        Raises:
            HostError: If the cache has groups that the connector's classes cannot take.
        """
        if not self.present:
            return
        if self._is_v2:
            if self.scheduler is not None:
                check_groups(self.scheduler, len(cache.groups))
            with self._hook("register_kv_cache_layout"):
                self.worker.register_kv_cache_layout(cache)
        else:
            with self._hook("register_kv_caches"):
                self.worker.register_kv_caches(cache)
        if self._options.epoch != "E1" and hasattr(self.scheduler, "wait_for_initialization"):
            with self._hook("wait_for_initialization"):
                self.scheduler.wait_for_initialization()

    def query(self, request: HostRequest, num_computed: int) -> tuple[int, bool]:
        """Ask for an offer and hold it to the host's rules.

        Args:
            request: The request being allocated.
            num_computed: Prompt tokens matched on the device.

        Returns:
            Tokens offered and whether they load asynchronously.

        Raises:
            ConnectorContractError: If the answer would kill the real host.
        """
        if not self.present:
            return 0, False

        def ask() -> Any:
            with self._hook("get_num_new_matched_tokens"):
                answer = self.scheduler.get_num_new_matched_tokens(
                    self._view(request), num_computed
                )
            return answers.offer(answer, num_computed, request.context_len, capped=self._is_v2)

        count, is_async = self._lead(ask)
        return count, is_async

    def after_alloc(self, request: HostRequest) -> None:
        """Report a request's pages, device-matched ones included; on the leader alone."""
        if self.scheduler is None:
            return
        with self._hook("update_state_after_alloc"):
            if self._is_v2:
                self.scheduler.update_state_after_alloc_by_layer_group(
                    self._view(request), [list(table) for table in request.tables]
                )
            else:
                self.scheduler.update_state_after_alloc(self._view(request), list(request.blocks))

    def build_and_bind(self, output: Any) -> None:
        """Metadata from the leader's scheduler to every rank's worker, pickled on the way."""
        if not self.present:
            return

        def build() -> bytes:
            with self._hook("build_connector_meta"):
                metadata = self.scheduler.build_connector_meta(output)
            return pickle.dumps(metadata)

        copied = pickle.loads(self._lead(build))
        with self._hook("bind_connector_meta"):
            self.worker.bind_connector_meta(copied)

    def start_load(self, stream: Any, *, has_load: bool) -> None:
        """Begin loads, ordered on M."""
        if self.present:
            with self._hook("start_load_kv", with_load=has_load):
                self.worker.start_load_kv(stream)

    def before_layer(self, layer: int, stream: Any, *, has_load: bool) -> None:
        """The forward's pre hook of one layer, on X."""
        if self.present:
            with self._hook("wait_for_layer_load", with_load=has_load):
                self.worker.wait_for_layer_load(layer, stream)

    def after_layer(self, layer: int, stream: Any) -> None:
        """The forward's post hook of one layer, on X."""
        if self.present:
            with self._hook("save_kv_layer"):
                self.worker.save_kv_layer(layer, stream)

    def after_forward(self) -> None:
        """The forward callable, after every forward, warm-up included."""
        if self._forward_callable is not None:
            with self._hook("forward_callable"):
                self._forward_callable()

    def wait_for_save(self, stream: Any) -> None:
        """After a launched forward, on M, usually while it runs."""
        if self.present:
            with self._hook("wait_for_save"):
                self.worker.wait_for_save(stream)

    def request_finished(self, request: HostRequest) -> bool:
        """Ask whether the pages are still needed.

        Raises:
            ConnectorContractError: If the answer is no bool.
        """
        if not self.present:
            return False

        def ask() -> bool:
            view = self._view(request)
            with self._hook("request_finished"):
                # No cache left is an empty outer list, which reaches the flat form (§3).
                if self._is_v2 and request.tables:
                    answer = self.scheduler.request_finished_by_layer_group(
                        view, [list(table) for table in request.tables]
                    )
                else:
                    answer = self.scheduler.request_finished(view, list(request.blocks))
            return answers.keep(answer)

        return bool(self._lead(ask))

    def cancel_load(self, request: HostRequest, start: int, end: int) -> None:
        """Tell that a part of an offer is not consumed (E4; §3), where there is such a method.

        Args:
            request: Whose offer it was.
            start: First token of the part.
            end: The token behind it.
        """
        if self._options.epoch == "E4" and hasattr(self.scheduler, "cancel_load"):
            with self._hook("cancel_load"):
                self.scheduler.cancel_load(self._view(request), start, end)

    def request_reset(self, request: HostRequest) -> None:
        """Tell that a request lost its pages and will replay (E4; §3), likewise."""
        if self._options.epoch == "E4" and hasattr(self.scheduler, "request_reset"):
            with self._hook("request_reset"):
                self.scheduler.request_reset(self._view(request))

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Announce ids once and learn which saves and loads of this rank ended.

        Raises:
            ConnectorContractError: If the answer is no pair of lists.
        """
        if not self.present:
            return [], []
        with self._hook("get_finished"):
            answer = self.worker.get_finished(list(finished_ids), list(started_ids))
        return answers.finished(answer)

    def shutdown(self) -> None:
        """E4's orderly end, where asked for and present."""
        if self._options.call_shutdown or self._options.epoch == "E4":
            for part in (self.scheduler, self.worker):
                if hasattr(part, "shutdown"):
                    part.shutdown()

    @contextmanager
    def _hook(self, name: str, *, with_load: bool = False) -> Iterator[None]:
        with self.recorder.timed(name, with_load=with_load):
            try:
                yield
            except Exception as error:
                if not self._options.hooks_are_fatal:
                    raise
                raise ConnectorFailedError(f"KV connector failed in {name}: {error!r}") from error

    def _lead(self, ask: Callable[[], Any]) -> Any:
        return self._comm.broadcast(ask() if self.scheduler is not None else None)

    def _view(self, request: HostRequest) -> LlmRequestView:
        as_id = self._options.salt_as_id or self._options.epoch == "E1"
        return LlmRequestView(request, salt_as_id=as_id, v2=self._is_v2)
