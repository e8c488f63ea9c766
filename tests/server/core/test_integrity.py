"""The shape of a failed self-check."""

from __future__ import annotations

import pytest

from server.core.integrity import IntegrityError, require


def test_require_names_the_facts() -> None:
    require(True, "fine")
    with pytest.raises(IntegrityError, match="one is two: 1, 2"):
        require(False, "one is two", 1, 2)
