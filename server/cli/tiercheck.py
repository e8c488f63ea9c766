"""What ``doctor`` looks at for lower tiers: which can be used, and those the environment names.

Must not know: how a tier is opened, how findings are shown; it imports no tier's package. Runs in:
the process of the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import ConfigError
from protocol.extras import install
from server import tierchecks
from server.cli.findings import Finding, Level
from server.sizes import format_size
from server.tierspec import TierSpec, parse_all

PACKAGES = {
    "disk": ("lmdb", "xxhash"),
    "mooncake": ("mooncake", "xxhash"),
    "valkey": ("glide_sync", "xxhash"),
    "s3": ("obstore", "xxhash"),
}
"""By kind, the modules that its porter imports."""

_ABOUT = "tiers"


def findings(
    environ: Mapping[str, str], is_there: Callable[[str], bool] | None = None
) -> list[Finding]:
    """Everything about lower tiers, as this process sees it.

    Args:
        environ: of this process.
        is_there: whether a module can be imported; ``has_module`` by default.
    """
    is_there = is_there or has_module
    missing = {
        kind: [name for name in names if not is_there(name)] for kind, names in PACKAGES.items()
    }
    urls = environ.get("KVKEEP_L2", "").split()
    try:
        specs = parse_all(urls)
    except ConfigError as error:
        return [Finding(Level.ERROR, _ABOUT, f"KVKEEP_L2: {error.message}", "correct it")]
    if specs:
        return [_judge(spec, missing[spec.kind]) for spec in specs]
    able = ", ".join(kind for kind, names in missing.items() if not names) or "none"
    unable = [kind for kind, names in missing.items() if names]
    text = f"KVKEEP_L2 names none; packages are there for: {able}"
    return [Finding(Level.NOTE, _ABOUT, text, _install(unable) if unable else "")]


def has_module(name: str) -> bool:
    """Whether a module of the top level is there; it is not imported."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _judge(spec: TierSpec, missing: list[str]) -> Finding:
    where = f"{spec.name}: {spec.kind} at {spec.location}"
    try:
        tierchecks.check([spec])
    except ConfigError as error:
        return Finding(Level.ERROR, _ABOUT, f"KVKEEP_L2: {error.message}", "correct it")
    if missing:
        text = f"{where}: {', '.join(missing)} cannot be imported"
        return Finding(Level.ERROR, _ABOUT, text, _install([spec.kind]))
    if spec.kind != "disk":
        return Finding(Level.OK, _ABOUT, where)
    folder = Path(spec.location)
    if not folder.parent.is_dir():
        advice = "make it, or mount its disk: the tier makes the last folder only"
        return Finding(Level.ERROR, _ABOUT, f"{where}: {folder.parent} is not there", advice)
    folder = folder if folder.is_dir() else folder.parent
    free_bytes = _free_bytes(folder)
    size_bytes = spec.number("size")
    text = f"{where}: up to {format_size(size_bytes)}, {format_size(free_bytes)} free in {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(Level.ERROR, _ABOUT, text, f"{folder} cannot be written by this user")
    if free_bytes < size_bytes:
        advice = "what it holds already counts as taken here; else make room, or choose less"
        return Finding(Level.WARNING, _ABOUT, text, advice)
    return Finding(Level.OK, _ABOUT, text)


def _free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _install(kinds: list[str]) -> str:
    named = [kind for kind in kinds if kind != "disk"]
    return install(*named) if named else "install kvkeep anew"
