"""A ledger's folder: whose it is, and which store it is of.

Purpose: a ledger that two servers wrote, or that is of another store, would count what is not
there. Must not know: what is in a ledger. Runs in: the porter, at start.
"""

from __future__ import annotations

import os

from server.tiers.disk.files import Files
from server.tiers.disk.hold import DYING_S, Hold, InUseError
from server.tiers.interface import TierError

STORE = "store"
_MAX_CHARS = 4096


def held(files: Files, folder: str, store: str, dying_s: float = DYING_S) -> Hold:
    """Opens a folder, or makes it.

    Args:
        files: the system calls.
        folder: absolute path.
        store: which store its ledger is of, in one line without secrets.
        dying_s: how long to wait for a porter that is about to go.

    Returns:
        Its lock, which the caller releases.

    Raises:
        TierError: it cannot be used, is of another store, or somebody else uses it.
    """
    try:
        files.make_folder(folder)
        hold = _hold(files, folder, dying_s)
    except OSError as error:
        raise TierError(f"ledger={folder}: {error.strerror or error}") from None
    try:
        _compare(os.path.join(folder, STORE), folder, store)
    except BaseException:
        hold.release()
        raise
    return hold


def _hold(files: Files, folder: str, dying_s: float) -> Hold:
    try:
        return Hold(files, folder, dying_s)
    except InUseError as error:
        text = f"is in use by another server{error.owner}, or by another tier"
        raise TierError(f"ledger={folder} {text}: each wants a folder of its own") from None


def _compare(path: str, folder: str, store: str) -> None:
    try:
        with open(path, "a+", encoding="utf-8") as file:
            file.seek(0)
            found = file.read(_MAX_CHARS).strip()
            if not found:
                file.write(store + "\n")
    except (OSError, ValueError) as error:
        raise TierError(f"{path}: {error}") from None
    if found and found != store:
        raise TierError(
            f"ledger={folder} is of {found[:200]}, and this is {store[:200]}: expected a folder of "
            f"its own, or, where that is the same store, none of the file {STORE} in it"
        )
