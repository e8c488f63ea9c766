"""What the kit found, as a table and as JSON.

Must not know: how checks work. Pure functions and one writer to a stream.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from adapter.conformance.kit.bench import Target
from adapter.conformance.kit.rules import Rule
from adapter.conformance.kit.shim import ShimReport
from adapter.conformance.kit.verdict import Outcome, Verdict

Findings = list[tuple[Rule, Verdict]]

_STYLES = {Outcome.HELD: "green", Outcome.BROKEN: "bold red", Outcome.UNSEEN: "yellow"}


def document(target: Target, findings: Findings, shim: ShimReport) -> dict[str, Any]:
    """Everything as plain values.

    Args:
        target: the connector.
        findings: one per rule.
        shim: the comparison with an installed host.
    """
    return {
        "connector": f"{target.module}:{target.scheduler_class},{target.worker_class}",
        "rules": [
            {
                "source": rule.source,
                "rule": rule.text,
                "outcome": verdict.outcome.value,
                "evidence": verdict.evidence,
            }
            for rule, verdict in findings
        ],
        "host": {
            "module": shim.module,
            "absent_because": shim.absent_because,
            "epoch": shim.epoch,
            "differences": list(shim.differences),
        },
        "broken": sum(verdict.outcome is Outcome.BROKEN for _, verdict in findings),
    }


def show(console: Console, target: Target, findings: Findings, shim: ShimReport) -> None:
    """Writes the table.

    Args:
        console: where to.
        target: the connector.
        findings: one per rule.
        shim: the comparison with an installed host.
    """
    table = Table(title=f"{target.module}: {target.scheduler_class}, {target.worker_class}")
    for column in ("contract", "rule", "", "seen"):
        table.add_column(column, overflow="fold")
    for rule, verdict in findings:
        word = f"[{_STYLES[verdict.outcome]}]{verdict.outcome.value}[/]"
        table.add_row(rule.source, rule.text, word, verdict.evidence.replace("[", "\\["))
    console.print(table)
    if not shim.module:
        console.print(
            "TensorRT-LLM is not installed here, so its interface was not compared "
            f"({shim.absent_because})",
            markup=False,
        )
        return
    console.print(f"installed interface: {shim.module}, looks like {shim.epoch}", markup=False)
    for line in shim.differences or ("no difference from what the adapter was written for",):
        console.print(f"  {line}", markup=False)
