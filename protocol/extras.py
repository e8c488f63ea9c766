"""The command that installs what an optional part of kvkeep needs, as it works on this machine.

Purpose: no index has kvkeep, so its own name and an extra would install nothing; what the extra
brings is named instead, as the installed package itself says it. Looks at the installation's
metadata, when something is found missing and never else. Must not know: which part needs what.
Runs in: every process.
"""

from __future__ import annotations

import re
import shlex

_PACKAGE = "kvkeep"
_OF_EXTRA = re.compile(r"^(?P<what>[^;]+?)\s*;\s*extra\s*==\s*[\"'](?P<extra>[^\"']+)[\"']\s*$")


def install(*extras: str) -> str:
    """A command line for a shell, with the environment's own pip.

    Args:
        extras: names of ``[project.optional-dependencies]``, at least one.

    Returns:
        One that names their packages; from a checkout that was not installed, one to be run there.
    """
    import importlib.metadata  # takes longer than all else here, and is hardly ever needed

    try:
        lines = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    matches = [match for line in lines if (match := _OF_EXTRA.match(line))]
    needs = [match["what"] for name in extras for match in matches if match["extra"] == name]
    if not needs:
        needs = [f".[{','.join(extras)}]"]
    return f"pip install {' '.join(shlex.quote(need) for need in dict.fromkeys(needs))}"
