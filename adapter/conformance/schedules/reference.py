"""What an engine without a cache answers: asked once per distinct request, then remembered.

The model's logits depend on a request's tokens alone, whatever its batch (the conformance host's
model is batch-invariant), so one answer serves every schedule. Must not know: schedules. Runs in
the caller's thread.
"""

from __future__ import annotations

from typing import Final, Protocol

from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.subject import Answer, Handle

_RESULT_S: Final = 60.0
_MAX_ANSWERS: Final = 4096


class Asked(Protocol):
    """An engine without a connector."""

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation."""


class Reference:
    """Answers of one engine."""

    def __init__(self, engine: Asked) -> None:
        """Asks nothing yet.

        Args:
            engine: without a connector; the caller ends it.
        """
        self._engine = engine
        self._answers: dict[tuple[object, ...], Answer] = {}

    def __call__(self, ask: Ask) -> Answer:
        """The answer to a request, cancelled or not, of whatever tenant.

        Args:
            ask: the request.
        """
        key = (ask.prompt, ask.max_new_tokens, ask.stop_ids, ask.context_only)
        found = self._answers.get(key)
        if found is None:
            found = self._engine.submit(ask).result(_RESULT_S)
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = found
        return found
