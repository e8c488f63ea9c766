"""What a failed self-check raises.

Must not know: anything else of the core, so that every part of it can raise this. Runs in: tests
and debugging; the checks themselves stand beside the data they check.
"""

from __future__ import annotations


class IntegrityError(Exception):
    """The core's data contradict each other; the message names how."""


def require(condition: bool, what: str, *facts: object) -> None:
    """Raises unless a condition holds.

    Args:
        condition: what must hold.
        what: a sentence saying so.
        facts: values to show.

    Raises:
        IntegrityError: when it does not hold.
    """
    if not condition:
        raise IntegrityError(f"{what}: {', '.join(repr(fact) for fact in facts)}")
