"""How the demo looks: a bar while an act is played, a line after it, a table at the end.

Must not know: how acts are played. Runs in the demo's main thread.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from adapter.conformance.demo.acts import HOOK_LIMIT_MS, Report
from adapter.conformance.demo.outcome import Outcome

_HELD, _BROKEN, _SKIPPED = "[green]✓[/]", "[bold red]✗[/]", "[dim]–[/]"


def mark(outcome: Outcome) -> str:
    """The sign of an act: held, broken or not played."""
    if outcome.held:
        return _HELD
    return _BROKEN if outcome.claims or outcome.error else _SKIPPED


@contextmanager
def bar(console: Console, title: str) -> Iterator[Report]:
    """A progress bar that vanishes when the act is over.

    Args:
        console: Where to draw; nothing is drawn unless it is a terminal.
        title: The act.

    Yields:
        To be told the parts that are done, and how many there are.
    """
    columns = (TextColumn("  {task.description}"), BarColumn(32), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(escape(title), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def say(console: Console, outcome: Outcome) -> None:
    """One line about an act that is over."""
    told = escape(outcome.error or outcome.summary)
    console.print(f"{mark(outcome)} {escape(outcome.title)} [dim]{told}[/]", highlight=False)


def table(outcomes: Sequence[Outcome]) -> Table:
    """All acts, one row each.

    Args:
        outcomes: In the order they were played.

    Returns:
        What was done, what it shows, the figures and the longest hook.
    """
    made = Table(title="kvkeep: one warm cache, engines come and go", title_style="bold")
    made.add_column("")
    made.add_column("what was done", ratio=3)
    made.add_column("what it shows", ratio=5)
    made.add_column("figures", ratio=4)
    made.add_column("longest hook", justify="right", no_wrap=True)
    made.add_column("time", justify="right", no_wrap=True)
    for outcome in outcomes:
        hook = outcome.figures.get("longest_hook_ms")
        made.add_row(
            mark(outcome),
            escape(outcome.title),
            _claims(outcome),
            escape(outcome.summary),
            _hook(hook) if isinstance(hook, float) else "",
            f"{outcome.seconds:.1f} s" if outcome.claims or outcome.error else "",
        )
        made.add_section()
    return made


def verdict(outcomes: Sequence[Outcome], seconds: float) -> Text:
    """The last line.

    Args:
        outcomes: All acts.
        seconds: The whole run.

    Returns:
        Whether all held, and how long it took.
    """
    broken = [outcome.title for outcome in outcomes if not outcome.held]
    if not broken:
        return Text(f"all {len(outcomes)} held, in {seconds:.0f} s", style="bold green")
    return Text(f"{len(broken)} of {len(outcomes)} did not hold: {'; '.join(broken)}", style="red")


def document(outcomes: Sequence[Outcome], seconds: float, quick: bool) -> dict[str, Any]:
    """Everything as plain data.

    Args:
        outcomes: All acts.
        seconds: The whole run.
        quick: Whether it was the short one.

    Returns:
        JSON-ready.
    """
    return {
        "demo": 1,
        "quick": quick,
        "held": all(outcome.held for outcome in outcomes),
        "seconds": round(seconds, 3),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "acts": [asdict(outcome) | {"held": outcome.held} for outcome in outcomes],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write figures to a file, making its folder.

    Args:
        path: The file; replaced if it exists.
        content: JSON-ready.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def console() -> Console:
    """Standard output; wide enough for the table where it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=140, highlight=False)


def _hook(longest_ms: float) -> str:
    told = f"{longest_ms:.1f} ms"
    return told if longest_ms <= HOOK_LIMIT_MS else f"[yellow]{told}[/]"


def _claims(outcome: Outcome) -> Text:
    told = Text()
    for number, claim in enumerate(outcome.claims):
        style = "" if claim.held else "bold red"
        told.append(
            ("\n" if number else "") + ("" if claim.held else "not so: ") + claim.text, style
        )
    if outcome.error:
        told.append(("\n" if outcome.claims else "") + outcome.error, "bold red")
    return told
