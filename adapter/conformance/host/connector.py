"""Calls into a connector: construction, every hook, and the rules of their answers.

Each hook is timed. Answers that kill the real host raise here: host contract §3
(query: ``(0, True)``, a negative count, reaching the prompt's end), §3
(``get_finished``: unknown or repeated ids are a ``KeyError``), §4 (construction
order). Metadata makes a pickle round trip as between ranks.

Must not know: batches, pages, streams beyond passing them on. Construction runs
on two threads, everything else on the executor's (registration: the main one).
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from adapter.conformance.host.errors import ConnectorContractError
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostRequest, LlmRequestView


class ConnectorPort:
    """The host's side of one connector, or of none.

    Args:
        scheduler: The connector's scheduler object, None without a connector.
        worker: The connector's worker object, None without a connector.
        recorder: Takes the duration of each hook.
        options: Version switches.
    """

    def __init__(
        self, scheduler: Any, worker: Any, recorder: HookRecorder, options: HostOptions
    ) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.recorder = recorder
        self._options = options
        self._forward_callable: Callable[..., Any] | None = None

    @classmethod
    def construct(
        cls, llm_args: Any, recorder: HookRecorder, options: HostOptions
    ) -> ConnectorPort:
        """Construct both classes concurrently (host contract §4, steps 2 and 3).

        Args:
            llm_args: Names module and classes in ``kv_connector_config``; without
                one the port answers as if nothing were ever cached.
            recorder: Takes the duration of each hook.
            options: Version switches.

        Returns:
            The port; the forward callable has been asked for.
        """
        config = llm_args.kv_connector_config
        if config is None:
            return cls(None, None, recorder, options)
        module = importlib.import_module(config.connector_module)
        scheduler_class = getattr(module, config.connector_scheduler_class)
        worker_class = getattr(module, config.connector_worker_class)
        with ThreadPoolExecutor(2, thread_name_prefix="construct") as pool:
            worker = pool.submit(worker_class, llm_args)
            scheduler = pool.submit(scheduler_class, llm_args)
            port = cls(scheduler.result(), worker.result(), recorder, options)
        with recorder.timed("register_forward_pass_callable"):
            port._forward_callable = port.worker.register_forward_pass_callable()
        return port

    @property
    def present(self) -> bool:
        """Whether there is a connector."""
        return self.worker is not None

    def register(self, pool: Any) -> None:
        """Hand over the final pool, then let the scheduler wait for it (§4, step 6)."""
        if not self.present:
            return
        with self.recorder.timed("register_kv_caches"):
            self.worker.register_kv_caches(pool)
        if self._options.epoch != "E1" and hasattr(self.scheduler, "wait_for_initialization"):
            with self.recorder.timed("wait_for_initialization"):
                self.scheduler.wait_for_initialization()

    def query(self, request: HostRequest, num_computed: int) -> tuple[int, bool]:
        """Ask for an offer and hold it to V1's rules.

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
        with self.recorder.timed("get_num_new_matched_tokens"):
            answer = self.scheduler.get_num_new_matched_tokens(self._view(request), num_computed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConnectorContractError(f"query answered {answer!r}, expected (int, bool)")
        count, is_async = answer
        if type(count) is not int or type(is_async) is not bool or count < 0:
            raise ConnectorContractError(f"query answered {answer!r}, expected (int >= 0, bool)")
        if count == 0 and is_async:
            raise ConnectorContractError("query answered (0, True)")
        if count and num_computed + count >= request.prompt_len:
            raise ConnectorContractError(
                f"query offered {count} tokens beyond {num_computed} of a prompt of "
                f"{request.prompt_len}: at least one token must be left to compute"
            )
        return count, is_async

    def after_alloc(self, request: HostRequest) -> None:
        """Report a request's pages, device-matched ones included."""
        if self.present:
            with self.recorder.timed("update_state_after_alloc"):
                self.scheduler.update_state_after_alloc(self._view(request), list(request.blocks))

    def build_and_bind(self, output: Any) -> None:
        """Metadata from scheduler to worker, pickled on the way."""
        if not self.present:
            return
        with self.recorder.timed("build_connector_meta"):
            metadata = self.scheduler.build_connector_meta(output)
        copied = pickle.loads(pickle.dumps(metadata))
        with self.recorder.timed("bind_connector_meta"):
            self.worker.bind_connector_meta(copied)

    def start_load(self, stream: Any, *, has_load: bool) -> None:
        """Begin loads, ordered on M."""
        if self.present:
            with self.recorder.timed("start_load_kv", with_load=has_load):
                self.worker.start_load_kv(stream)

    def before_layer(self, layer: int, stream: Any, *, has_load: bool) -> None:
        """The forward's pre hook of one layer, on X."""
        if self.present:
            with self.recorder.timed("wait_for_layer_load", with_load=has_load):
                self.worker.wait_for_layer_load(layer, stream)

    def after_layer(self, layer: int, stream: Any) -> None:
        """The forward's post hook of one layer, on X."""
        if self.present:
            with self.recorder.timed("save_kv_layer"):
                self.worker.save_kv_layer(layer, stream)

    def after_forward(self) -> None:
        """The forward callable, after every forward, warm-up included."""
        if self._forward_callable is not None:
            with self.recorder.timed("forward_callable"):
                self._forward_callable()

    def wait_for_save(self, stream: Any) -> None:
        """After a launched forward, on M, usually while it runs."""
        if self.present:
            with self.recorder.timed("wait_for_save"):
                self.worker.wait_for_save(stream)

    def request_finished(self, request: HostRequest) -> bool:
        """Ask whether the pages are still needed.

        Raises:
            ConnectorContractError: If the answer is no bool.
        """
        if not self.present:
            return False
        with self.recorder.timed("request_finished"):
            keep = self.scheduler.request_finished(self._view(request), list(request.blocks))
        if type(keep) is not bool:
            raise ConnectorContractError(f"request_finished answered {keep!r}, expected a bool")
        return keep

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Announce ids once and learn which saves and loads ended.

        Raises:
            ConnectorContractError: If the answer is no pair of lists.
        """
        if not self.present:
            return [], []
        with self.recorder.timed("get_finished"):
            answer = self.worker.get_finished(list(finished_ids), list(started_ids))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConnectorContractError(f"get_finished answered {answer!r}, expected two lists")
        saved, loaded = answer
        return list(saved), list(loaded)

    def shutdown(self) -> None:
        """E4's orderly end, where asked for and present."""
        for part in (self.scheduler, self.worker):
            if self._options.call_shutdown and hasattr(part, "shutdown"):
                part.shutdown()

    def _view(self, request: HostRequest) -> LlmRequestView:
        as_id = self._options.salt_as_id or self._options.epoch == "E1"
        return LlmRequestView(request, salt_as_id=as_id)
