"""Checks that the packages beside a kvkeep package are kvkeep's too.

``server``, ``adapter`` and ``protocol`` are common names. When another project's package of such a
name comes first on ``sys.path``, the first symptom would be an odd error deep inside an engine, or
none at all. So each of the three packages runs this check while it is imported, in whichever
process that is, and refuses by naming the foreign path.

Must not know: anything else of kvkeep. The three packages load this file by its path beside their
own (never as ``protocol.siblings``: that name may already belong to somebody else), so it imports
only the standard library and leaves nothing behind, ``sys.modules`` included.

What counts as ours: the package stands in the same folder as the one that asks (true of a checkout,
of an editable install and of a wheel, which all keep the three side by side) and its
``__init__.py`` carries kvkeep's marker (another distribution unpacked over ours keeps the folder
and loses the marker).
"""

import os
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

PACKAGES = ("adapter", "protocol", "server")
"""The top-level packages that the distribution kvkeep installs, always together."""

MARKER = b'__distribution__ = "kvkeep"'
"""A line that each of their ``__init__.py`` has."""


def check(init_path: str) -> None:
    """Refuse the import when a sibling that Python would import is not kvkeep's.

    A sibling that cannot be found at all is no fault here: the import that needs it says so.

    Args:
        init_path: ``__file__`` of the package that is being imported.

    Raises:
        ImportError: A sibling is another project's, or another kvkeep's; names its path.
    """
    folder = os.path.dirname(os.path.abspath(init_path))
    root, own_name = os.path.split(folder)
    for name in PACKAGES:
        if name == own_name:
            continue
        foreign_path = _foreign_path(name, root)
        if foreign_path is not None:
            raise ImportError(
                f"kvkeep's package {own_name!r} ({folder}) found a package {name!r} that does not "
                f"belong to it: {foreign_path}. Python would import that one instead of "
                f"{os.path.join(root, name)}. Remove it from sys.path (PYTHONPATH, the folder you "
                f"start from, or another installed distribution), or give kvkeep an environment "
                f"of its own.",
                name=name,
                path=foreign_path,
            )


def _foreign_path(name: str, root: str) -> str | None:
    """Tell where ``name`` would be imported from, if that is not ours.

    Args:
        name: One of `PACKAGES`.
        root: The folder that holds the package which asks.

    Returns:
        The foreign path, or None when the sibling is ours or cannot be found.
    """
    try:
        spec = find_spec(name)
    except ValueError:  # a module of that name is loaded and carries no spec: made by hand
        return f"<module {name} in sys.modules, without a file>"
    if spec is None:
        return None
    if spec.origin is None:
        # A folder without __init__.py. Python takes one only if no real package follows.
        return next(iter(spec.submodule_search_locations or ()), "<no file>")
    if not _same_folder(spec, os.path.join(root, name)) or not _has_marker(spec.origin):
        return spec.origin
    return None


def _same_folder(spec: ModuleSpec, expected: str) -> bool:
    """Compare folders as the file system sees them: either side may come through a link."""
    return os.path.realpath(os.path.dirname(spec.origin or "")) == os.path.realpath(expected)


def _has_marker(path: str) -> bool:
    """Tell whether the file at ``path`` carries the marker; an unreadable one does not."""
    try:
        with open(path, "rb") as file:
            return MARKER in file.read(65536)
    except OSError:
        return False
