"""Who plays: servers and engines, each a process with the orders it takes.

Must not know: what is shown with them. Runs in the demo's main thread.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adapter.conformance.demo.processes import Child, DemoError, Stage

ARENA_BYTES: Final = 512 << 20
EXTENT_BYTES: Final = 16 << 20

EXACT: Final = {
    # The machine may be busy with other things: a late answer is no miss here.
    "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "500",
    # B's pool holds one prompt, and A's requests end together: whatever share of the pool
    # finished requests may keep, on a busy machine it is too little for all to be saved.
    "TRTLLM_KVKEEP_HELD_PAGES_PERCENT": "100",
}
"""Settings of the connector in engines whose hits are counted exactly."""

_START_S: Final = 30.0
_ORDER_S: Final = 120.0
_REQUEST_S: Final = 60.0
_SETTLE_S: Final = 60.0


class Server(Child):
    """``python -m server launch`` with an endpoint and an arena of its own.

    Args:
        on: The run it belongs to.
        name: For messages and the log.
    """

    def __init__(self, on: Stage, name: str) -> None:
        self.url = f"ipc://{on.folder}/kvkeep.sock"
        self.arena_dir = on.arena_dir
        super().__init__(
            on,
            name,
            [
                *("-m", "server", "launch", "--endpoint", self.url),
                *("--arena-dir", str(on.arena_dir), "--l1-size", str(ARENA_BYTES)),
                *("--extent-size", str(EXTENT_BYTES), "--arena-at-exit", "remove"),
            ],
        )
        self.line = self.read_line(_START_S)
        """The one line it says when it is ready."""
        self.start_s = time.monotonic() - self.started_s
        """From exec to that line, seconds."""

    def end(self) -> int:
        """Ask it to end with SIGTERM.

        Returns:
            Its exit code.

        Raises:
            DemoError: If it had ended before.
        """
        if self.process.poll() is not None:
            raise DemoError(f"{self.name} ended by itself, exit code {self.process.returncode}")
        self.process.send_signal(signal.SIGTERM)
        return self.stop()


@dataclass(frozen=True)
class Answer:
    """How one request went, as its engine reports it.

    Attributes:
        tokens: Generated token ids.
        num_device_tokens: Prompt tokens the engine's own pool still held.
        num_loaded_tokens: Prompt tokens taken from the server.
        num_computed_tokens: Prompt tokens computed.
        num_logits: Tokens whose logits were compared.
        logits_equal: Whether they equal the reference run's, bit for bit.
        seconds: From submission to the end.
    """

    name: str
    tokens: list[int]
    num_device_tokens: int
    num_loaded_tokens: int
    num_computed_tokens: int
    num_logits: int
    logits_equal: bool
    seconds: float


class Engine(Child):
    """An engine of the conformance host.

    Args:
        on: The run it belongs to.
        name: For messages and the log.
        model: Model directory.
        url: The server; None for an engine without any cache.
        num_blocks: Pages of its pool.
        tokens_per_block: Tokens a page holds.
        settings: Environment of the connector, beyond its defaults.
        payload: Whether pages come from digests in place of a transformer.
    """

    def __init__(
        self,
        on: Stage,
        name: str,
        *,
        model: Path,
        url: str | None,
        num_blocks: int,
        tokens_per_block: int,
        settings: Mapping[str, str] | None = None,
        payload: bool = False,
    ) -> None:
        super().__init__(on, name, ["-m", "adapter.conformance.demo.engine"], settings)
        self._logits_dir = on.folder / "logits"
        begun = self._order(
            "start",
            model=str(model),
            url=url,
            num_blocks=num_blocks,
            tokens_per_block=tokens_per_block,
            payload=payload,
        )
        self.page_bytes = int(begun["page_bytes"])
        """Size of one page, bytes."""
        self.settle()

    def submit(
        self,
        prompts: Sequence[tuple[str, Sequence[int]]],
        max_new_tokens: int,
        *,
        hold_offer: bool = False,
    ) -> None:
        """Ask for generations, all at once.

        Args:
            prompts: Name and token ids of each.
            max_new_tokens: Tokens to generate for each.
            hold_offer: Stop between query and load when the connector offers something.
        """
        self._order(
            "submit",
            requests=[
                {"name": name, "tokens": list(tokens), "max_new_tokens": max_new_tokens}
                for name, tokens in prompts
            ],
            hold_offer=hold_offer,
        )

    def collect(self, *, compare: bool = True) -> list[Answer]:
        """Wait for what was submitted.

        Args:
            compare: Compare logits with the reference; False makes them the reference.

        Returns:
            One answer per request, in the order of submission.
        """
        self._logits_dir.mkdir(exist_ok=True)
        result = self._order(
            "collect", logits_dir=str(self._logits_dir), compare=compare, timeout_s=_REQUEST_S
        )
        return [Answer(**answer) for answer in result["answers"]]

    def ask(self, name: str, tokens: Sequence[int], max_new_tokens: int) -> Answer:
        """Ask for one generation, compare it, and let all saves end afterwards."""
        self.submit([(name, tokens)], max_new_tokens)
        (answer,) = self.collect()
        self.settle()
        return answer

    def settle(self) -> float:
        """Wait until saves have ended and mappings stand; it then forgets its own pages.

        Returns:
            Seconds it took.
        """
        begun_s = time.monotonic()
        self._order("settle", timeout_s=_SETTLE_S)
        return time.monotonic() - begun_s

    def wait_for_offer(self) -> bool:
        """Wait until it stands between query and load.

        Returns:
            False if the requests ended without an offer.
        """
        return bool(self._order("wait_for_offer", timeout_s=_REQUEST_S)["offered"])

    def go_on(self) -> None:
        """Let it load what it was offered."""
        self._order("go_on")

    def replay(self, num_requests: int, report: Callable[[int], None]) -> dict[str, Any]:
        """Replay the trace.

        Args:
            num_requests: How many of its first requests.
            report: Told the number of requests done, now and then.

        Returns:
            What ``adapter.conformance.demo.replay`` counts.
        """
        return self._order("replay", report, num_requests=num_requests)

    def figures(self) -> dict[str, Any]:
        """Durations of its connector's hooks."""
        return self._order("figures")

    def _order(
        self, order: str, report: Callable[[int], None] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        self.send(json.dumps({"order": order, **arguments}))
        while True:
            event = self._event(_ORDER_S)
            if event["event"] == "done":
                result: dict[str, Any] = event["result"]
                return result
            if event["event"] == "failed":
                raise DemoError(f"{self.name} (pid {self.pid}): {event['reason']}")
            if report is not None:
                report(event["done"])

    def _event(self, timeout_s: float) -> dict[str, Any]:
        line = self.read_line(timeout_s)
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            raise DemoError(f"{self.name} said {line[:200]!r}") from None
        return event
