"""The warm-up curve as a picture: hit ratio over all requests so far, and in each turn.

Must not know: where the figures come from. Needs matplotlib, which is among the development tools;
any thread.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(
    path: Path,
    curves: Sequence[tuple[str, Sequence[float]]],
    per_turn: Sequence[float],
    agents: int,
) -> None:
    """Writes a PNG.

    Args:
        path: where; its folder is made.
        curves: title and cumulative hit ratio after each request, for each run.
        per_turn: hit ratio of each turn of the first run.
        agents: requests of one turn.
    """
    # The class itself, not pyplot: no display, no global state, no window.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    middles = [agents * (turn + 0.5) + 0.5 for turn in range(len(per_turn))]
    axes.bar(
        middles,
        per_turn,
        agents * 0.9,
        color="#c9d7e8",
        label=f"{curves[0][0]}, each turn",
        zorder=1,
    )
    for title, ratios in curves:
        axes.plot(range(1, len(ratios) + 1), ratios, linewidth=2, label=title, zorder=2)
    axes.set_xlabel("requests")
    axes.set_ylabel("blocks found / blocks asked for")
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y", alpha=0.4, zorder=0)
    axes.legend(loc="lower right")
    axes.set_title(f"{agents} agents, {len(per_turn)} turns: how the cache warms up")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
