"""One rank's process: an engine, served to whoever asks on the control channel.

Ends with the channel, and at once (exit code 1, nothing tidied up) when its executor dies, as a
rank of an MPI job does. Must not know: other ranks beyond the wires it was given. The main thread
serves, one thread per pending answer waits, one watches the executor.
"""

from __future__ import annotations

import importlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import HostError
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.managers import tokens_per_block
from adapter.conformance.host.model import KV_DTYPES
from adapter.conformance.host.ranks.communicator import ProcessCommunicator
from adapter.conformance.host.ranks.injection import Injector
from adapter.conformance.host.ranks.reducer import Reducer
from adapter.conformance.host.ranks.spec import Answer, Ask, Dying, JobSpec, RankStats
from adapter.conformance.host.ranks.tpmodel import TensorParallelTransformer
from adapter.conformance.host.ranks.wire import RankLostError, Wire
from adapter.conformance.host.requests import RequestHandle
from adapter.conformance.host.weights import read_model_dir
from adapter.trtllm_api import CONFORMANCE_EPOCH, CONFORMANCE_RANK

_MAX_PENDING: Final = 256
_SEND_LIMIT_S: Final = 60.0
_RESULT_LIMIT_S: Final = 600.0
_WATCH_S: Final = 0.02
_LAST_ANSWERS_S: Final = 0.1


@dataclass(frozen=True)
class Seat:
    """A rank's place in the job.

    Attributes:
        control: To whoever started the job.
        comm: Control path between ranks, as ``ProcessCommunicator`` takes it.
        reduce: All-reduce, as ``Reducer`` takes it.
    """

    rank: int
    control: Wire
    comm: Sequence[Wire]
    reduce: Sequence[Wire]


def run(seat: Seat, spec: JobSpec) -> int:
    """Be a rank until told to end.

    Args:
        seat: Its place.
        spec: The job.

    Returns:
        Exit code.
    """
    os.environ.clear()
    os.environ.update(spec.environ)
    os.environ[CONFORMANCE_RANK] = str(seat.rank)
    os.environ[CONFORMANCE_EPOCH] = spec.options[seat.rank].epoch
    try:
        server = RankServer(seat, spec)
    except Exception as error:  # noqa: BLE001 - told to whoever started the job
        seat.control.send(Dying(_chain(error)), _SEND_LIMIT_S)
        return 1
    return server.serve()


class RankServer:
    """The engine of one rank and what may be asked of it.

    Args:
        seat: The rank's place.
        spec: The job.
    """

    def __init__(self, seat: Seat, spec: JobSpec) -> None:
        self._control = seat.control
        self._injector = Injector()
        self._send_lock = threading.Lock()
        self._handles: dict[int, RequestHandle] = {}
        self._pool = ThreadPoolExecutor(_MAX_PENDING, thread_name_prefix="answer")
        for name in spec.plugins:
            _named(name)(seat.rank, self._injector)
        self._engine = HostEngine(
            spec.llm_args,
            spec.num_blocks,
            model=_model(seat, spec),
            options=replace(spec.options[seat.rank], probe=self._injector.probe),
            comm=ProcessCommunicator(seat.rank, seat.comm),
        )
        self._asked: dict[str, Callable[..., Any]] = {
            "cancel": self._cancel,
            "forget_reuse": self._engine.forget_reuse,
            "stats": self._stats,
            "arm": self._injector.arm,
            "disarm": self._injector.disarm,
            "call": lambda target: _named(target)(self._engine),
        }

    def serve(self) -> int:
        """Answer until told to shut down, or until nobody is there to ask.

        Returns:
            Exit code.
        """
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        self._answer(Answer(0, None))
        while True:
            try:
                ask: Ask = self._control.receive(None)
            except RankLostError:
                return 1
            if ask.name == "submit":
                self._submit(ask)
            elif ask.name == "shutdown":
                return self._shut_down(ask)
            else:
                self._pool.submit(self._serve_one, ask)

    def _serve_one(self, ask: Ask) -> None:
        try:
            self._answer(Answer(ask.number, self._asked[ask.name](**ask.arguments)))
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._answer(_refusal(ask.number, error))

    def _submit(self, ask: Ask) -> None:
        # On the serving thread: requests are taken in the order in which they were asked.
        try:
            handle = self._engine.submit(**ask.arguments)
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._answer(_refusal(ask.number, error))
            return
        self._handles[ask.number] = handle
        self._pool.submit(self._await_result, ask.number, handle)

    def _await_result(self, number: int, handle: RequestHandle) -> None:
        try:
            answer = Answer(number, handle.result(_RESULT_LIMIT_S))
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = _refusal(number, error)
        self._handles.pop(number, None)
        self._answer(answer)

    def _cancel(self, number: int) -> bool:
        handle = self._handles.get(number)
        if handle is not None:
            self._engine.cancel(handle)
        return handle is not None

    def _stats(self) -> RankStats:
        worker = self._engine.connector.worker
        counters = getattr(worker, "counters", None)
        return RankStats(
            host=self._engine.stats(),
            connector=counters() if counters is not None else {},
            hooks=self._engine.hooks.as_rows(),
            passes=self._injector.passes(),
        )

    def _shut_down(self, ask: Ask) -> int:
        try:
            self._engine.shutdown(**ask.arguments)
            shutdown = getattr(self._engine.connector.worker, "shutdown", None)
            if shutdown is not None:
                shutdown()
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._answer(_refusal(ask.number, error))
            return 1
        self._pool.shutdown()
        self._answer(Answer(ask.number, None))
        return 0

    def _watch(self) -> None:
        while self._engine.error is None:
            time.sleep(_WATCH_S)
        self._answer(Dying(_chain(self._engine.error)))
        time.sleep(_LAST_ANSWERS_S)  # for requests that failed with the executor
        os._exit(1)

    def _answer(self, message: Answer | Dying) -> None:
        with self._send_lock:
            try:
                self._control.send(message, _SEND_LIMIT_S)
            except HostError:
                os._exit(1)  # nobody is there to hear it


def _model(seat: Seat, spec: JobSpec) -> ForwardModel | None:
    args = spec.llm_args
    if spec.model:
        made: ForwardModel = _named(spec.model)(seat.rank, spec.size)
        return made
    if args.enable_attention_dp or args.tensor_parallel_size == 1:
        return None
    config, weights = read_model_dir(Path(args.model))
    return TensorParallelTransformer(
        config,
        weights,
        tokens_per_block(args, spec.options[seat.rank]),
        rank=seat.rank,
        size=spec.size,
        reducer=Reducer(seat.rank, seat.reduce),
        kv_dtype=KV_DTYPES[args.kv_cache_config.dtype],
    )


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _refusal(number: int, error: Exception) -> Answer:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its constructor wants
        error = HostError(_chain(error))
    return Answer(number, error, is_error=True)


def _chain(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(repr(error))
        error = error.__cause__
    return " because of ".join(texts)
