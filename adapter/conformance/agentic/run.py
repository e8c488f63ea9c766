"""The three passes, in order.

Must not know: how they are shown. Runs in the caller's thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from adapter.conformance.agentic.outcome import Outcome
from adapter.conformance.agentic.rig import Report, Scale, engine, serving


def run(scale: Scale, begins: Callable[[str], Report]) -> Outcome:
    """Plays everything.

    Args:
        scale: sizes of the passes whose loads are measured.
        begins: told the title of each pass; returns who is told how far it is.

    Returns:
        What was seen.

    Raises:
        DemoError: a server did not start, or there is no room.
    """
    begun_s = time.monotonic()
    small = scale.small()
    with tempfile.TemporaryDirectory(prefix="kvkeep-agentic-") as folder:
        model = Path(folder) / "model"
        with serving(scale) as url:
            with engine(scale, url, model) as rig:
                report = begins("an engine on an empty cache")
                first = rig.play(saves_answers=False, report=report)
            with engine(scale, url, model) as rig:
                report = begins("another engine on the warm cache")
                again = rig.play(saves_answers=False, report=report)
        with serving(small) as url, engine(small, url, model) as rig:
            report = begins("answers saved too")
            answers = rig.play(saves_answers=True, report=report)
    return Outcome(scale, first, again, answers, time.monotonic() - begun_s)
