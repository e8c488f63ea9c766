"""The prompts of the demo: two desks, each with one instruction and several questions.

Prompts of one desk share the instruction, so a cache has a prefix to find; the two
desks share nothing. Follow-ups continue a conversation after the engine's answer.

Must not know: engines, the server. Pure data, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from adapter.conformance.host.tokenizer import encode

_LIGHTHOUSE: Final = (
    "You answer visitors of the lighthouse at Sankt Olavsholm. The tower was built of granite in "
    "1841, stands 38 metres above the sea and has 167 steps. The lamp burned whale oil, then "
    "paraffin, and has been electric since 1926. The keepers lived in the low house by the stair "
    "and rang the bell by hand in fog. Be brief, name years and figures, and say so when the log "
    "books do not tell.\n\n"
)
_GREENHOUSE: Final = (
    "You keep the diary of a greenhouse with four bays. Bay one holds tomatoes, bay two holds "
    "figs, bay three is for seedlings and bay four is empty until March. Water comes from two "
    "cisterns of 900 litres. Every answer gives the bay, the day and the amount, and warns when "
    "a cistern would fall below a third. Never guess a reading that is not in the diary.\n\n"
)
_DESKS: Final = (
    (
        _LIGHTHOUSE,
        (
            "Visitor: my grandmother was born in the keepers' house in the winter of 1919. What "
            "did the lamp burn that night, and who would have rung the bell?\nYou:",
            "Visitor: we have small children with us. How many steps are there, and is there a "
            "place to sit down on the way up?\nYou:",
            "Visitor: is it true that the tower was once painted red and white to be seen in "
            "snow?\nYou:",
        ),
    ),
    (
        _GREENHOUSE,
        (
            "Gardener: the tomatoes took 45 litres on Monday and the figs half of that. How much "
            "is left if both cisterns were full on Sunday evening?\nYou:",
            "Gardener: I want to sow leeks and celery. Which bay, and what do I have to move "
            "first?\nYou:",
            "Gardener: the thermometer of bay two showed nothing since Thursday. What shall I "
            "write into the diary?\nYou:",
        ),
    ),
)
_FOLLOW_UPS: Final = (
    "\nThank you. And if it had been the year before, would the answer be the same?\nYou:",
    "\nI see. Please say it once more in a single line, with the figures first.\nYou:",
    "\nWho could tell me more about that, and where would I find them today?\nYou:",
)


@dataclass(frozen=True)
class Prompt:
    """One prompt and how its conversation goes on.

    Attributes:
        name: Short, for reports.
        tokens: Token ids of the prompt, about 400 to 600.
        follow_up: Token ids that come after the engine's answer.
    """

    name: str
    tokens: tuple[int, ...]
    follow_up: tuple[int, ...]

    def longer(self, answer: list[int]) -> Prompt:
        """The conversation one turn later.

        Args:
            answer: Token ids the engine generated.

        Returns:
            A prompt of this one, the answer and the follow-up.
        """
        return Prompt(f"{self.name}+", (*self.tokens, *answer, *self.follow_up), ())


def prompts(num_prompts: int) -> list[Prompt]:
    """Prompts, desks taking turns, so that neighbours share nothing.

    Args:
        num_prompts: 1 to 6.

    Returns:
        That many.
    """
    found = []
    for number in range(len(_FOLLOW_UPS)):
        for desk, (instruction, questions) in zip("LG", _DESKS, strict=True):
            tokens = tuple(encode(instruction + questions[number]))
            follow_up = tuple(encode(_FOLLOW_UPS[number], add_bos=False))
            found.append(Prompt(f"{desk}{number + 1}", tokens, follow_up))
    if not 1 <= num_prompts <= len(found):
        raise ValueError(f"num_prompts is {num_prompts}, valid are 1..{len(found)}")
    return found[:num_prompts]
