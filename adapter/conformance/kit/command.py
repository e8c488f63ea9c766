"""``python -m adapter conformance``: arguments, the run, the exit code.

Must not know: how checks work. Runs in the process's main thread; however it ends, what it started
is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from rich.console import Console

from adapter.config import CONNECTOR_MODULE, SCHEDULER_CLASS, WORKER_CLASS, read_settings
from adapter.conformance.demo.processes import DemoError
from adapter.conformance.host.weights import TINY, write_model_dir
from adapter.conformance.kit.bench import SCHEDULES, Bench, Target
from adapter.conformance.kit.classes import ClassError, load
from adapter.conformance.kit.ending import exit_code, unwinding
from adapter.conformance.kit.report import Findings, document, show
from adapter.conformance.kit.rules import RULES, Rule
from adapter.conformance.kit.serverchild import (
    START_S,
    Server,
    ServerError,
    await_server,
    commanded,
)
from adapter.conformance.kit.shim import compare_installed
from adapter.conformance.kit.verdict import (
    LASTING,
    NO_SERVER,
    PRIVATE_SERVERS,
    Outcome,
    Verdict,
    broken,
    shortened,
    unseen,
)
from adapter.conformance.schedules.service import serving
from adapter.serverurl import EMBEDDED_URL, check_url
from protocol.errors import ConfigError

EXIT_BROKEN: Final = 1
EXIT_UNUSABLE: Final = 2
_TRIES: Final = 3
"""Of a rule that was not observed: a busy machine may have a connector miss once."""
_SEEN_CHARS: Final = 300


def main(arguments: list[str]) -> int:
    """Runs the suite.

    Args:
        arguments: behind the word ``conformance``.

    Returns:
        0 when no rule was broken, 1 when one was, 2 when the connector cannot be
        loaded, whatever its import raises, its settings are wrong, or its server is not
        started, 130 and 143 when Ctrl-C and SIGTERM ended it.

    Raises:
        SystemExit: 2, for options that are wrong; they are named on stderr.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.server_command is not None and options.server_url is None:
        parser.error("--server-command needs --server-url, where the server listens then")
    command = _words(parser, options.server_command)
    if options.module == CONNECTOR_MODULE:
        try:
            _check_settings(options.server_url)
        except ConfigError as error:
            parser.error(str(error))
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 140)
    try:
        with unwinding():
            return _conform(options, command, console)
    except KeyboardInterrupt as interrupt:
        how = signal.Signals(exit_code(interrupt) - 128).name
        console.print(f"conformance: ended by {how}; everything it started is gone", markup=False)
        return exit_code(interrupt)


def _conform(options: argparse.Namespace, command: list[str], console: Console) -> int:
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    names = (options.module, options.scheduler_class, options.worker_class)
    try:
        load(*names)  # before a server is started for nothing
    except ClassError as error:
        console.print(f"conformance: {error}", markup=False, soft_wrap=True)
        return EXIT_UNUSABLE
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvkeep-kit-")))
        try:
            service, url = _server(options, command, stack, console)
        except (ServerError, DemoError) as error:
            console.print(f"conformance: no server: {error}", markup=False)
            return EXIT_UNUSABLE
        target = Target(*names, url)
        model = write_model_dir(folder / "model", TINY)
        bench = Bench(target, model, service, schedules=options.schedules, seed=seed)
        findings = _run(bench, options.rule, console)
    shim = compare_installed()
    result = document(target, findings, shim)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        show(console, target, findings, shim)
    return EXIT_BROKEN if result["broken"] else 0


def _check_settings(url: str | None) -> None:
    """Sees that kvkeep's own connector can be constructed: wrong settings break no rule.

    Raises:
        ConfigError: of the option, or of the variable it is in.
    """
    if url is not None:
        check_url(url, "--server-url")
    # What an engine is given; without a URL it is that of a server that is yet to be started.
    config = SimpleNamespace(server_url=url or EMBEDDED_URL)
    read_settings(SimpleNamespace(kv_connector_config=config), os.environ)


def _words(parser: argparse.ArgumentParser, command: str | None) -> list[str]:
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        parser.error(f"--server-command: {error}")
    if not words:
        parser.error("--server-command is empty")
    return words


def _server(
    options: argparse.Namespace,
    command: list[str],
    stack: contextlib.ExitStack,
    console: Console,
) -> tuple[Server | None, str | None]:
    """The server that rules may stop and kill, or none, and where the connector's is."""
    url: str | None = options.server_url
    is_ours = options.module == CONNECTOR_MODULE
    if command:
        wait = f"waiting for {command[0]!r} to listen at {url}, for {START_S:.0f} s at most"
        console.print(f"conformance: {wait}", markup=False, soft_wrap=True)
        return stack.enter_context(commanded(command, url or "")), url
    if url is None and is_ours:
        service = stack.enter_context(serving())
        return service, service.url
    if url is not None and is_ours and not url.startswith(EMBEDDED_URL):
        await_server(url)
    return None, url


def _run(bench: Bench, sources: list[str] | None, console: Console) -> Findings:
    findings: Findings = []
    for rule in RULES:
        if sources and rule.source not in sources:
            continue
        verdict = check(rule, bench)
        findings.append((rule, verdict))
        console.print(f"{rule.source:7} {verdict.outcome.value:12} {rule.text}", markup=False)
    return findings


def check(rule: Rule, bench: Bench) -> Verdict:
    """One rule's verdict; an engine that dies or a check that cannot go on breaks the rule.

    A server that does not come up again is not the connector's breach.

    Args:
        rule: from the table.
        bench: builds engines.
    """
    try:
        verdict, tries = rule.check(bench), 1
        while _is_to_be_repeated(verdict, bench) and tries < _TRIES:
            verdict, tries = rule.check(bench), tries + 1
        bench.was_in_vain = bench.was_in_vain or (tries == _TRIES and not bench.has_loaded)
        return _fitting(verdict, bench)
    except (ServerError, DemoError) as error:
        return unseen(shortened(f"the server could not be started again: {error}", _SEEN_CHARS))
    except Exception as error:  # noqa: BLE001 - whatever the connector makes of the engine
        return broken(shortened(f"the engine did not survive it: {error!r}", _SEEN_CHARS))


def _fitting(verdict: Verdict, bench: Bench) -> Verdict:
    """What helps a connector with a server does not help one whose engines have their own."""
    is_private = (bench.target.server_url or "").startswith(EMBEDDED_URL)
    return unseen(PRIVATE_SERVERS) if is_private and verdict == unseen(NO_SERVER) else verdict


def _is_to_be_repeated(verdict: Verdict, bench: Bench) -> bool:
    if verdict.outcome is not Outcome.UNSEEN or verdict.evidence in LASTING:
        return False
    return bench.has_loaded or not bench.was_in_vain


def _positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= 1:  # none played would be told as none wrong
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m adapter conformance",
        description="Holds a KV connector to TensorRT-LLM's contract, rule by rule.",
    )
    parser.add_argument("--module", default=CONNECTOR_MODULE, help="of the connector's classes")
    parser.add_argument("--scheduler-class", default=SCHEDULER_CLASS)
    parser.add_argument("--worker-class", default=WORKER_CLASS)
    parser.add_argument(
        "--server-url",
        help="its server; ours gets one of its own, which the checks stop and kill. "
        "inproc:// gives each engine a private one: that takes two to four minutes",
    )
    parser.add_argument(
        "--server-command",
        metavar="COMMAND",
        help="starts the server at --server-url: checks stop, kill and restart it",
    )
    parser.add_argument(
        "--schedules",
        type=_positive,
        default=SCHEDULES,
        help=f"random schedules of one rank, and half as many of several ({SCHEDULES})",
    )
    parser.add_argument("--seed", type=int, help="of an earlier run; a fresh one otherwise")
    sources = list(dict.fromkeys(rule.source for rule in RULES))
    parser.add_argument(
        "--rule",
        action="append",
        type=lambda text: f"§{text.lstrip('§')}",
        choices=sources,
        metavar="§",
        help="e.g. 9.1 or §9.1, one section of the contract; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    return parser
