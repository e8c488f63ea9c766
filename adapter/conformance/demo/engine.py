"""The engines' side: ``python -m adapter.conformance.demo.engine``, one process each.

Takes orders as JSON lines on standard input and answers each with one JSON line
on standard output: ``{"event": "done", "result": …}`` or ``{"event": "failed",
"reason": …}``; a long one says ``progress`` in between.

Must not know: what the demo expects; servers beyond their URL. The main thread
reads orders; a held offer stops the executor's thread, as nothing else would.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from adapter.config import make_kv_connector_config
from adapter.conformance.demo import logits
from adapter.conformance.demo.calm import Calm
from adapter.conformance.demo.replay import replay
from adapter.conformance.demo.trace import BLOCK_TOKENS, VOCAB_SIZE
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.llm_args import KvCacheConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from adapter.conformance.host.requests import HostResult, RequestHandle

PAYLOAD_BYTES_PER_TOKEN: Final = 4
"""In each of K and V, one layer: pages of 4 KiB for 512 tokens."""

_HOLD_S: Final = 60.0
_SETTLE_S: Final = 60.0
_POLL_S: Final = 0.01


class Voice:
    """Writes events, one JSON line each; any thread."""

    def __init__(self, stdout: TextIO) -> None:
        """Speak to ``stdout``."""
        self._stdout = stdout
        self._lock = threading.Lock()

    def say(self, event: str, **detail: Any) -> None:
        """Write one event."""
        line = json.dumps({"event": event, **detail})
        with self._lock:
            self._stdout.write(line + "\n")
            self._stdout.flush()


class Desk:
    """An engine and the requests under way.

    Args:
        voice: For events of its own.
    """

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._engine: HostEngine | None = None
        self._payload: PayloadModel | None = None
        self._calm: Calm | None = None
        self._pending: dict[str, tuple[RequestHandle, float]] = {}
        self._hold = False
        self._offered = threading.Event()
        self._go = threading.Event()

    @property
    def engine(self) -> HostEngine:
        """The engine.

        Raises:
            RuntimeError: Before ``start``.
        """
        if self._engine is None:
            raise RuntimeError("the first order must be start")
        return self._engine

    def start(
        self,
        *,
        model: str,
        url: str | None,
        num_blocks: int,
        tokens_per_block: int,
        payload: bool = False,
    ) -> dict[str, Any]:
        """Bring up an engine.

        Args:
            model: Model directory; its weights are used unless ``payload``.
            url: The server; None for an engine without any cache, its own included.
            num_blocks: Pages of the pool.
            tokens_per_block: Tokens a page holds.
            payload: Fill pages from digests of the tokens instead of computing KV.

        Returns:
            ``page_bytes``, ``pool_pages``.
        """
        args = LlmArgs(
            model=model,
            kv_cache_config=KvCacheConfig(
                tokens_per_block=tokens_per_block,
                enable_block_reuse=url is not None,
                enable_partial_reuse=False,
            ),
            kv_connector_config=None if url is None else make_kv_connector_config(url),
            max_num_tokens=max(256, 64 * tokens_per_block) if payload else 256,
        )
        forward: ForwardModel | None = None
        if payload:
            forward = self._payload = PayloadModel(
                BLOCK_TOKENS, bytes_per_token=PAYLOAD_BYTES_PER_TOKEN, vocab_size=VOCAB_SIZE
            )
        options = HostOptions(probe=self._probe)
        engine = self._engine = HostEngine(args, num_blocks, model=forward, options=options)
        link = getattr(engine.connector.worker, "link", None)
        self._calm = None if link is None else Calm(link)
        page_bytes = engine.pool[0].numel() * engine.pool.element_size()
        return {"page_bytes": page_bytes, "pool_pages": num_blocks}

    def submit(self, *, requests: list[dict[str, Any]], hold_offer: bool = False) -> dict[str, Any]:
        """Ask for generations, all at once.

        Args:
            requests: ``name``, ``tokens`` and ``max_new_tokens`` of each.
            hold_offer: Stop at the next offer of the connector, before its load.

        Returns:
            Nothing.
        """
        self._go.clear()
        self._offered.clear()
        self._hold = hold_offer
        for request in requests:
            handle = self.engine.submit(request["tokens"], request["max_new_tokens"])
            self._pending[request["name"]] = handle, time.monotonic()
        return {}

    def wait_for_offer(self, *, timeout_s: float) -> dict[str, Any]:
        """Wait until the executor stands between query and load.

        Args:
            timeout_s: Longest wait in seconds.

        Returns:
            ``offered``: False if all requests ended without an offer.

        Raises:
            TimeoutError: If neither happens in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._offered.wait(_POLL_S):
            if all(handle.done() for handle, _ in self._pending.values()):
                break
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no offer within {timeout_s:.0f} s")
        return {"offered": self._offered.is_set()}

    def go_on(self) -> dict[str, Any]:
        """Let a held offer be loaded."""
        self._go.set()
        return {}

    def collect(self, *, logits_dir: str, compare: bool, timeout_s: float) -> dict[str, Any]:
        """Wait for everything that was submitted.

        Args:
            logits_dir: Where the reference's logits lie.
            compare: Compare with them; otherwise write them.
            timeout_s: Longest wait for each request in seconds.

        Returns:
            ``answers``, one per request in the order of submission.
        """
        pending, self._pending = self._pending, {}
        answers = []
        for name, (handle, begun_s) in pending.items():
            result = handle.result(timeout_s)
            seconds = time.monotonic() - begun_s
            path = Path(logits_dir) / f"{name}.npy"
            if not compare:
                logits.write(path, result.logits)
            equal = not compare or logits.equal(path, result.logits)
            answers.append(_answer(name, result, seconds, equal))
        return {"answers": answers}

    def settle(self, *, timeout_s: float) -> dict[str, Any]:
        """Wait for saves and mappings, then forget what the engine could reuse itself.

        Args:
            timeout_s: Longest wait in seconds.

        Returns:
            ``forgotten_pages``, and whether a server ``is_there``.
        """
        pages = self.engine.forget_reuse(timeout_s)
        is_there = self._calm is not None and self._calm.wait(timeout_s)
        return {"forgotten_pages": pages, "is_there": is_there}

    def replay(self, *, num_requests: int) -> dict[str, Any]:
        """Replay the trace; see ``adapter.conformance.demo.replay``."""
        if self._payload is None:
            raise RuntimeError("a replay needs an engine with the payload model")
        return replay(
            self.engine,
            self._payload,
            num_requests,
            settle=lambda: self.settle(timeout_s=_SETTLE_S),
            report=lambda done: self._voice.say("progress", done=done),
        )

    def figures(self) -> dict[str, Any]:
        """Hook durations so far: the longest of the executor without a load, and all rows."""
        hook, duration_ns = self.engine.hooks.longest()
        return {
            "longest_hook": hook,
            "longest_hook_ms": duration_ns / 1e6,
            "hooks": self.engine.hooks.as_rows(),
        }

    def close(self) -> None:
        """End the engine, if there is one."""
        self._go.set()
        if self._calm is not None:
            self._calm.close()
        if self._engine is not None:
            self._engine.shutdown()

    def _probe(self, point: str, request_ids: tuple[int, ...]) -> None:
        # On the executor's thread: the offer was honoured, its load has not begun.
        if point != "queried" or not self._hold:
            return
        self._hold = False
        self._offered.set()
        if not self._go.wait(_HOLD_S):
            raise TimeoutError(f"nobody let the held offer go on within {_HOLD_S:.0f} s")


def _answer(name: str, result: HostResult, seconds: float, equal: bool) -> dict[str, Any]:
    return {
        "name": name,
        "tokens": result.tokens,
        "num_device_tokens": result.num_device_tokens,
        "num_loaded_tokens": result.num_loaded_tokens,
        "num_computed_tokens": result.num_computed_tokens,
        "num_logits": len(result.logits),
        "logits_equal": equal,
        "seconds": seconds,
    }


def serve(stdin: TextIO, voice: Voice) -> None:
    """Follow orders until the input ends.

    Args:
        stdin: One JSON object a line: ``order`` and its arguments.
        voice: Answers.
    """
    desk = Desk(voice)
    orders: dict[str, Callable[..., dict[str, Any]]] = {
        order.__name__: order
        for order in (
            *(desk.start, desk.submit, desk.wait_for_offer, desk.go_on),
            *(desk.collect, desk.settle, desk.replay, desk.figures),
        )
    }
    try:
        for line in stdin:
            arguments = json.loads(line)
            try:
                result = orders[arguments.pop("order")](**arguments)
            except Exception as error:
                logging.exception("order failed")
                voice.say("failed", reason=f"{type(error).__name__}: {error}")
            else:
                voice.say("done", result=result)
    finally:
        desk.close()


def main() -> None:
    """Run until standard input ends."""
    # Lines are ours alone: whatever else prints goes to the log.
    stdout, sys.stdout = sys.stdout, sys.stderr
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    serve(sys.stdin, Voice(stdout))


if __name__ == "__main__":
    main()
