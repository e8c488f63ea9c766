"""Top-level scalars of a YAML file, without a library for YAML.

Purpose: LMCache's configuration file is YAML, its keys that matter here are scalars of its first
level, and neither the server nor an engine's environment need have a YAML library. Must not know:
which keys there are. Runs in: whoever reads such a file, at start.
"""

from __future__ import annotations


def scalars(text: str) -> dict[str, str | None]:
    """Lines ``key: value`` without indentation; everything else is skipped.

    Args:
        text: the file.

    Returns:
        Key to value, quotes and comments taken off; None for ``null``, ``~`` and nothing.
    """
    values: dict[str, str | None] = {}
    for line in text.splitlines():
        key, colon, rest = line.partition(":")
        if not colon or not key or key[0] in " \t#-" or (rest and rest[0] not in " \t"):
            continue
        rest = rest.strip()
        if rest[:1] in ("'", '"'):
            values[key.strip()] = rest[1:].partition(rest[0])[0]
            continue
        value = "" if rest.startswith("#") else rest.partition(" #")[0].strip()
        values[key.strip()] = None if value in ("", "null", "~") else value
    return values
