"""Findings: the gravest decides, people read a table, programs an object."""

from __future__ import annotations

import json

from server.cli.findings import Finding, Level, document, table, worst

FINE = Finding(Level.OK, "kernel", "Linux 6.1")
SLOW = Finding(Level.WARNING, "shared memory", "64 MiB", "raise it")
BAD = Finding(Level.ERROR, "open files", "at most 16")


def test_the_gravest_level_counts_in_any_order() -> None:
    assert worst([]) is Level.OK
    assert worst([FINE]) is Level.OK
    assert worst([SLOW, FINE]) is Level.WARNING
    assert worst([SLOW, BAD, FINE]) is Level.ERROR
    assert worst([FINE, Finding(Level.NOTE, "user", "uid 7")]) is Level.NOTE


def test_the_table_has_a_line_for_each_and_the_advice_below_its_own() -> None:
    assert table([FINE, SLOW, BAD]).splitlines() == [
        "ok       kernel         Linux 6.1",
        "warning  shared memory  64 MiB",
        "                        -> raise it",
        "error    open files     at most 16",
    ]
    assert table([]) == ""


def test_the_document_is_json_with_the_same_words() -> None:
    assert json.loads(json.dumps(document([SLOW]))) == {
        "worst": "warning",
        "findings": [
            {
                "level": "warning",
                "about": "shared memory",
                "text": "64 MiB",
                "advice": "raise it",
            }
        ],
    }
