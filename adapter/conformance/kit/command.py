"""``python -m adapter conformance``: arguments, the run, the exit code.

Must not know: how checks work. Runs in the process's main thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from adapter.config import CONNECTOR_MODULE, SCHEDULER_CLASS, WORKER_CLASS
from adapter.conformance.demo.processes import DemoError
from adapter.conformance.host.weights import TINY, write_model_dir
from adapter.conformance.kit.bench import SCHEDULES, Bench, Target
from adapter.conformance.kit.report import Findings, document, show
from adapter.conformance.kit.rules import RULES, Rule
from adapter.conformance.kit.serverchild import Server, ServerError, await_server, commanded
from adapter.conformance.kit.shim import compare_installed
from adapter.conformance.kit.verdict import LASTING, Outcome, Verdict, broken, unseen
from adapter.conformance.schedules.service import serving
from adapter.serverurl import EMBEDDED_URL, check_url
from protocol.errors import ConfigError

EXIT_BROKEN: Final = 1
EXIT_UNUSABLE: Final = 2
_TRIES: Final = 3
"""Of a rule that was not observed: a busy machine may have a connector miss once."""


def main(arguments: list[str]) -> int:
    """Runs the suite.

    Args:
        arguments: behind the word ``conformance``.

    Returns:
        0 when no rule was broken, 1 when one was, 2 when the connector cannot be
        loaded, whatever its import raises, or its server not started.

    Raises:
        SystemExit: 2, for options that are wrong; they are named on stderr.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.server_command is not None and options.server_url is None:
        parser.error("--server-command needs --server-url, where the server listens then")
    command = _words(parser, options.server_command)
    if options.server_url is not None and options.module == CONNECTOR_MODULE:
        try:
            check_url(options.server_url, "--server-url")
        except ConfigError as error:
            parser.error(str(error))
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 140)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvkeep-kit-")))
        try:
            service, url = _server(options, command, stack)
        except (ServerError, DemoError) as error:
            console.print(f"conformance: no server: {error}", markup=False)
            return EXIT_UNUSABLE
        try:
            target = Target(options.module, options.scheduler_class, options.worker_class, url)
            model = write_model_dir(folder / "model", TINY)
            bench = Bench(target, model, service, schedules=options.schedules, seed=seed)
        except Exception as error:  # noqa: BLE001 - whatever a module raises while it is imported
            is_absent = isinstance(error, (ImportError, AttributeError))
            what = "no such connector" if is_absent else "the connector cannot be loaded"
            console.print(f"conformance: {what}: {error!r}", markup=False)
            return EXIT_UNUSABLE
        findings = _run(bench, options.rule, console)
    shim = compare_installed()
    result = document(target, findings, shim)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        show(console, target, findings, shim)
    return EXIT_BROKEN if result["broken"] else 0


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
    options: argparse.Namespace, command: list[str], stack: contextlib.ExitStack
) -> tuple[Server | None, str | None]:
    """The server that rules may stop and kill, or none, and where the connector's is."""
    url: str | None = options.server_url
    is_ours = options.module == CONNECTOR_MODULE
    if command:
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
        return verdict
    except (ServerError, DemoError) as error:
        return unseen(f"the server could not be started again: {error}"[:300])
    except Exception as error:  # noqa: BLE001 - whatever the connector makes of the engine
        return broken(f"the engine did not survive it: {error!r}"[:300])


def _is_to_be_repeated(verdict: Verdict, bench: Bench) -> bool:
    if verdict.outcome is not Outcome.UNSEEN or verdict.evidence in LASTING:
        return False
    return bench.has_loaded or not bench.was_in_vain


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:  # none played would be told as none wrong
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


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
        help="its server; ours gets one of its own, which the checks stop and kill",
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
