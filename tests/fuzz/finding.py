"""What a fuzzer reports when an oracle is broken.

Knows nothing of what is fuzzed. Runs in the fuzzer's process.
"""

from __future__ import annotations


class Finding(Exception):  # noqa: N818 - it is not an error of the fuzzer's
    """An oracle does not hold.

    Attributes:
        what: one line; its part before the first colon names the kind.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    @property
    def kind(self) -> str:
        """What stays the same while a reproducer is made smaller."""
        return self.what.partition(":")[0]


def require(condition: bool, what: str) -> None:
    """Raises a finding unless a condition holds."""
    if not condition:
        raise Finding(what)
