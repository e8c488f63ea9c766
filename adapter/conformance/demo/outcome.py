"""What an act of the demo comes to: claims that held or not, and figures.

Must not know: how acts are played or shown. Plain data, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Figure = int | float | str | list[int]


@dataclass(frozen=True)
class Claim:
    """One sentence that is true or false.

    Attributes:
        text: The sentence, as it reads when it holds.
        held: Whether it held.
    """

    text: str
    held: bool


@dataclass
class Outcome:
    """One act.

    Attributes:
        title: What was done.
        claims: What was to be shown; none means that it was not played.
        figures: By name, with the unit in the name; all go into the JSON.
        summary: The figures a person wants to see, in a few words.
        seconds: How long it took.
        error: Why it could not be played to its end, or empty.
    """

    title: str
    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    summary: str = ""
    seconds: float = 0.0
    error: str = ""

    def claim(self, text: str, held: bool) -> None:
        """Add a claim."""
        self.claims.append(Claim(text, held))

    @property
    def held(self) -> bool:
        """Whether it was played to its end and every claim held."""
        return bool(self.claims) and not self.error and all(claim.held for claim in self.claims)
