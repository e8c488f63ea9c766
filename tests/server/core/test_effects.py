"""Effects are plain frozen data, each with its own type."""

from __future__ import annotations

from typing import get_args

from server.core import effects as fx


def test_effects_are_frozen_and_distinct() -> None:
    kinds = get_args(fx.Effect)
    assert len(set(kinds)) == len(kinds) == 30
    for kind in kinds:
        params = getattr(kind, "__dataclass_params__", None)
        assert issubclass(kind, tuple) or (params is not None and params.frozen)
        assert kind.__doc__
