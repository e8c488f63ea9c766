"""The benchmark's table on the terminal.

Must not know: how figures are made. Runs in the caller's thread.
"""

from __future__ import annotations

import itertools

from rich.table import Table
from rich.text import Text

from adapter.conformance.agentic.figures import TOKENS_PER_S
from adapter.conformance.agentic.outcome import Outcome


def turns(outcome: Outcome) -> Table:
    """The hit ratio turn by turn, beside what arithmetic says."""
    workload, summary = outcome.scale.workload, outcome.summary
    expected = workload.expected_hits(saves_answers=False)
    counts = [one.num_blocks for one in outcome.first.seen]
    made = Table(title=f"{workload.agents} agents, {workload.turns} turns, one cache")
    columns = ("turn", "requests so far", "hit ratio", "expected", "so far", "answers saved too")
    for name in columns:
        made.add_column(name, justify="right")
    for turn in range(workload.turns):
        part = slice(workload.agents * turn, workload.agents * (turn + 1))
        made.add_row(
            str(turn),
            str(part.stop),
            f"{summary.per_turn[turn]:.3f}",
            f"{sum(expected[part]) / sum(counts[part]):.3f}",
            f"{summary.cumulative[part.stop - 1]:.3f}",
            f"{outcome.answers_summary.cumulative[part.stop - 1]:.3f}",
        )
    return made


def figures(outcome: Outcome) -> Table:
    """All other figures, and what each is."""
    scale, summary, answers = outcome.scale, outcome.summary, outcome.answers_summary
    expected = sum(scale.workload.expected_hits(saves_answers=False))
    loaded = f"{outcome.load_bytes / 1e9:.2f} GB in {summary.load_s:.2f} s"
    made = Table(show_header=False)
    made.add_column("figure")
    made.add_column("value", justify="right")
    made.add_column("what it is", style="dim")
    rows = [
        ("blocks", f"{summary.blocks}", f"of {scale.workload.block_tokens} tokens"),
        ("hits", f"{summary.hits}", f"expected {expected}; all from the server"),
        ("ratio", f"{summary.ratio:.4f}", "hits / blocks; prompts are saved, answers are not"),
        (
            "TTFT, modelled",
            f"{summary.ttft_speedup_modelled:.3f} x",
            f"cold / warm at {TOKENS_PER_S:.0f} tokens/s, loading taken as free",
        ),
        (
            "TTFT, loads as measured",
            f"{summary.ttft_speedup_measured_load:.3f} x",
            f"{scale.token_bytes / 1024:g} KiB a token; queries {summary.query_s:.2f} s",
        ),
        ("loads", f"{outcome.load_gb_per_s:.1f} GB/s", loaded),
        ("second engine", f"{outcome.restart_ratio:.4f}", "of what it could find, warm server"),
        (
            "answers saved too",
            f"{answers.ratio:.4f}",
            f"{answers.ttft_speedup_modelled:.1f} x modelled, loading taken as free",
        ),
        ("bit-exact", "yes" if outcome.is_bit_exact else "NO", "every loaded block compared"),
    ]
    for row in rows:
        made.add_row(*row)
    return made


def verdict(outcome: Outcome) -> Text:
    """The last line or lines."""
    wrong = outcome.wrong()
    if not wrong:
        return Text(f"all as expected, in {outcome.seconds:.0f} s", style="bold green")
    shown = list(itertools.islice(wrong, 10))
    more = [f"and {len(wrong) - 10} more"] if len(wrong) > 10 else []
    return Text("\n".join([*shown, *more]), style="bold red")
