"""``warm``: has a running server load what its lower tiers have, before engines ask for it.

Must not know: how a server loads, or how it is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from server.cli import prefixes, reaching
from server.cli.salts import salt_options
from server.wording import counted

if TYPE_CHECKING:
    from protocol.messages import Body, WarmStatusReply
    from server.asking import Asker

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_NOTHING = 3
EXIT_INTERRUPTED = 130

LIMIT_S = 5.0
LOOK_S = 0.2
WAIT_S = 10.0


@click.command(name="warm")
@click.option(
    "--endpoint",
    "--server",
    "endpoint",
    metavar="URL",
    help="The server's endpoint, as its start-up line names it.  [default: as for launch]",
)
@click.option(
    "--namespace",
    metavar="NAME",
    help="Load one namespace only: the 32 hex digits of its fingerprint; or, where L1 has some of "
    "it or an engine uses it, its first 4 or more, or the model's name.  [default: all]",
)
@click.option(
    "--bytes", "size", metavar="SIZE", help="Load at most so much, e.g. 20G.  [default: what fits]"
)
@click.option(
    "--tokens",
    "tokens_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Load these prompts' chunks: a file with a JSON list of token ids on each line. Needs"
    " --namespace and --tokens-per-block.",
)
@click.option(
    "--tokens-per-block",
    metavar="N",
    type=click.IntRange(1, 1 << 16),
    help="Of the engines that use the namespace.",
)
@click.option(
    "--chunk-blocks",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Likewise: blocks stored under one key.",
)
@salt_options("The prompts' cache salt, if they have one.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=WAIT_S,
    show_default=True,
    help="How long to wait for a server whose tiers can be read.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout.")
def command(
    endpoint: str | None,
    namespace: str | None,
    size: str | None,
    tokens_file: str | None,
    tokens_per_block: int | None,
    chunk_blocks: int,
    salt: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Load the hottest chunks of the lower tiers into L1 before traffic comes.

    Nothing is evicted for them: it ends when all is there, or L1 or --bytes is full. Ctrl-C ends
    it; what was loaded stays. The exit code is 0 when it ran to its end, 1 when no server answers
    or the server ended it, 3 when no tier lists anything.
    """
    from protocol.errors import ConfigError
    from server import prompts, sizes

    at = reaching.place(endpoint)
    try:
        max_bytes = sizes.parse_size("bytes", size) if size is not None else 0
        wanted = [b""]
        if tokens_file is not None:
            if namespace is None or tokens_per_block is None:
                raise sizes.invalid(
                    "tokens", tokens_file, "--namespace and --tokens-per-block with it"
                )
            wanted = prompts.read_keys(tokens_file, tokens_per_block, chunk_blocks, salt)
        goal = Goal(namespace, wanted, max_bytes)
        code = _run(at.side_path, at.url, goal, wait_s, as_json)
    except ConfigError as error:
        click.echo(f"kvkeep: {error}", err=True)
        code = EXIT_CONFIG
    except KeyboardInterrupt:  # while it waited for a server
        click.echo("kvkeep: not warmed: interrupted", err=True)
        code = EXIT_INTERRUPTED
    raise SystemExit(code)


@dataclass(frozen=True)
class Goal:
    """What is to be loaded.

    Attributes:
        namespace: as typed, or None for all.
        wanted: keys of each prefix, or one empty entry for what tiers list.
        max_bytes: most of it, 0 for what fits.
    """

    namespace: str | None
    wanted: list[bytes]
    max_bytes: int


def _fingerprint(asker: Asker, name: str | None) -> bytes:
    """Of the namespace that is meant, empty for all.

    Raises:
        ConfigError: INVALID_CONFIG: not exactly one that the server knows has that name.
    """
    from protocol.errors import ConfigError

    if name is None:
        return b""
    try:
        found = prefixes.find(asker.status(LIMIT_S).namespaces, name)
    except ConfigError as error:
        hint = "one that only lower tiers have is named by all 32 hex digits of its fingerprint"
        raise ConfigError(error.code, f"{error.message}; {hint}") from None
    return bytes.fromhex(name) if found is None else found.fingerprint


def _run(side_path: str, url: str, goal: Goal, wait_s: float, as_json: bool) -> int:
    from protocol.errors import RETRYABLE, ConfigError, KvkeepError
    from server import asking

    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            with asking.connected(side_path, LIMIT_S, "warm") as asker:
                return _warm(asker, goal, as_json)
        except ConfigError:
            raise  # of an option: no fault of the server's
        except (KvkeepError, OSError) as error:
            may_come = isinstance(error, OSError) or error.code in RETRYABLE
            if may_come and time.monotonic() < give_up_s:
                time.sleep(LOOK_S)
                continue
            why = asking.reason(error, side_path)
            click.echo(f"kvkeep: not warmed, {url}: {why}", err=True)
            return EXIT_FAILED


def _warm(asker: Asker, goal: Goal, as_json: bool) -> int:
    fingerprint = _fingerprint(asker, goal.namespace)
    start_s, code = time.monotonic(), 0
    done: list[WarmStatusReply] = []
    try:
        with _bar() if not as_json else nullcontext(_nothing) as show:
            for keys in goal.wanted:
                left = goal.max_bytes - sum(status.loaded_bytes for status in done)
                if goal.max_bytes and left <= 0:
                    break
                number = _begin(asker, fingerprint, keys, left if goal.max_bytes else 0)
                try:
                    done.append(_watch(asker, number, show))
                except KeyboardInterrupt:
                    done.append(_cancel(asker, number))
                    raise
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    whole = _together(done, "interrupted" if code else "no prompt has one whole chunk")
    if not whole.listed and not code:
        code = EXIT_NOTHING
    _tell(whole, time.monotonic() - start_s, as_json)
    return code


def _together(done: list[WarmStatusReply], nothing: str) -> WarmStatusReply:
    """Several jobs as one; with none of them, nothing is why."""
    from protocol.messages import WarmStatusReply

    if len(done) == 1:
        return done[0]
    missed = sum(one.missed for one in done)
    last = done[-1].reason if done else nothing
    return WarmStatusReply(
        listed=sum(one.listed for one in done),
        held=sum(one.held for one in done),
        loaded=sum(one.loaded for one in done),
        loaded_bytes=sum(one.loaded_bytes for one in done),
        missed=missed,
        final=True,
        reason=f"{counted(missed, 'chunk was', 'chunks were')} not found" if missed else last,
    )


def _begin(asker: Asker, fingerprint: bytes, keys: bytes, max_bytes: int) -> int:
    from protocol.messages import Warm, WarmReply

    begun = asker.ask(Warm(fingerprint=fingerprint, keys=keys, max_bytes=max_bytes), LIMIT_S)
    if not isinstance(begun, WarmReply):
        raise _nonsense(begun)
    return begun.warm


def _watch(asker: Asker, number: int, show: Callable[[WarmStatusReply], None]) -> WarmStatusReply:
    """Waits for the end."""
    from protocol.messages import WarmStatus

    pause_s = LOOK_S / 20
    while True:
        status = _status(asker.ask(WarmStatus(warm=number), LIMIT_S))
        show(status)
        if status.final:
            return status
        time.sleep(pause_s)
        pause_s = min(LOOK_S, 2 * pause_s)


def _cancel(asker: Asker, number: int) -> WarmStatusReply:
    from protocol.messages import WarmCancel

    return _status(asker.ask(WarmCancel(warm=number), LIMIT_S))


def _status(body: Body) -> WarmStatusReply:
    from protocol.messages import WarmStatusReply

    if not isinstance(body, WarmStatusReply):
        raise _nonsense(body)
    return body


def _nonsense(body: Body) -> Exception:
    from protocol.errors import ErrorCode, ReplyMalformedError

    return ReplyMalformedError(ErrorCode.MALFORMED, f"{type(body).__name__} came as the answer")


def _nothing(status: WarmStatusReply) -> None:
    """Shows nothing."""


class _Bar:
    """A progress bar on stderr, where that is a terminal."""

    def __enter__(self) -> Callable[[WarmStatusReply], None]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        # Not left to ``disable``: old releases of rich end such a bar with an empty line.
        self._is_shown = console.is_terminal
        self._progress = Progress(
            TextColumn("warming"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("warming", total=None, told="")
        if self._is_shown:
            self._progress.start()
        return self._show

    def _show(self, status: WarmStatusReply) -> None:
        from server.sizes import format_size

        self._progress.update(
            self._task,
            total=status.listed or None,
            completed=status.held + status.loaded + status.missed,
            told=f"{status.loaded} of {status.listed} chunks, {format_size(status.loaded_bytes)}",
        )

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            self._progress.stop()


def _bar() -> _Bar:
    return _Bar()


def _tell(status: WarmStatusReply, seconds: float, as_json: bool) -> None:
    from server.sizes import format_size

    if as_json:
        told = {
            "chunks": status.loaded,
            "bytes": status.loaded_bytes,
            "held": status.held,
            "listed": status.listed,
            "missed": status.missed,
            "seconds": round(seconds, 3),
            "reason": status.reason,
        }
        click.echo(json.dumps(told))
        return
    held = f", {counted(status.held, 'was', 'were')} there" if status.held else ""
    click.echo(
        f"warmed {counted(status.loaded, 'chunk')} ({format_size(status.loaded_bytes)}) in "
        f"{seconds:.1f} s{held}: {status.reason}"
    )
