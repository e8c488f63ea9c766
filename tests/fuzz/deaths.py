"""How copiers end in a fuzzed shell: at once, or killed and not dying.

Knows what a copier may still touch, not who asked for it. Runs in the fuzzer's process.
"""

from __future__ import annotations

from server.core import effects as fx
from tests.fuzz.truth import Truth


def copier_dies(truth: Truth, sticks: bool = False, number: int = 0) -> None:
    """A copier and its mappings are gone, or it is killed and does not die; another starts.

    Args:
        truth: the shell.
        sticks: it may go on writing what it was told to, until ``stuck_dies``.
        number: which of those that run.
    """
    copier = fx.CopierId(sorted(truth.up)[number % len(truth.up)])
    had = [job for job, one in truth.jobs.items() if one.copier == copier]
    mine = {(int(truth.jobs[job].extent), slot) for job in had for slot in truth.aims[job]}
    if sticks:
        truth.stuck[copier, truth.lives] = mine
    else:
        truth.flying -= mine
    for job in had:
        del truth.jobs[job], truth.aims[job]
    # Nobody copies from the old mappings any more; what was copied stays.
    gone = [handle for handle in truth.handles if truth.copier_of[handle] == copier]
    truth.handles.update({handle: (truth.handles[handle][0], 0) for handle in gone})
    pools = fx.OpenPool | fx.ClosePool
    asked = [one for one in truth.pending if isinstance(one, pools) and one.copier == copier]
    truth.pending = [one for one in truth.pending if one not in asked]
    if sticks:
        truth.core.copier_stuck(copier, truth.lives, truth.now_ns)
    else:
        truth.core.copier_lost(copier, truth.now_ns)
    truth.lives += 1
    truth.effects()
    truth.core.copier_ready(copier, truth.now_ns)


def stuck_dies(truth: Truth) -> None:
    """The copiers that were killed and did not die are seen dead."""
    for (copier, life), slots in list(truth.stuck.items()):
        del truth.stuck[copier, life]
        truth.flying -= slots
        truth.core.copier_gone(fx.CopierId(copier), life, truth.now_ns)
