"""The queries of the alert rules and of the Grafana dashboard, and the series that they name."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.deploy.observability.promtool import DASHBOARD, RULES

_METRIC = re.compile(r"\bkvkeep_[a-z0-9_]+(?:\{[^}]*\})?")

# What Grafana puts in for its variables.
_VARIABLES = {"$__rate_interval": "1m", "$instance": ".*"}


def rules() -> dict[str, str]:
    """Expression by the name of its alert.

    An ``expr`` follows its ``alert`` there, on one line or folded.
    """
    found: dict[str, str] = {}
    text = RULES.read_text(encoding="utf-8")
    for part in re.split(r"^ +- alert: ", text, flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        line = re.search(r"^ +expr: (.*(?:\n {10,}.*)*)", rest, re.M)
        assert line is not None, name
        found[name] = " ".join(line[1].removeprefix(">-").split())
    return found


def panels() -> list[dict[str, Any]]:
    """Panels of the dashboard."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = board["panels"]
    return found


def queries() -> dict[str, str]:
    """Expression by panel and letter, with Grafana's variables filled in."""
    found: dict[str, str] = {}
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, expression
            found[f"{panel['id']} {panel['title']} {target['refId']}"] = expression
    return found


def series(expression: str) -> set[str]:
    """Selectors of series that an expression has, each by itself a query."""
    return set(_METRIC.findall(expression))
