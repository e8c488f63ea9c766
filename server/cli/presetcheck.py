"""What ``doctor`` says of TensorRT-LLM's presets: which code each of their names leads to here.

Looks at files and at what distributions say of themselves: nothing of LMCache or TensorRT-LLM is
imported, which would take seconds and may fail without a GPU. Must not know: how findings are
shown. Runs in: the process of the command line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from server.cli.findings import Finding, Level

PRESETS: Final = {
    "lmcache": (
        "lmcache.integration.tensorrt_llm.tensorrt_adapter",
        "LMCacheKvConnectorScheduler",
        "LMCacheKvConnectorWorker",
    ),
    "lmcache-mp": (
        "lmcache.integration.tensorrt_llm.tensorrt_mp_adapter",
        "LMCacheMPKvConnectorScheduler",
        "LMCacheMPKvConnectorWorker",
    ),
}
"""By preset: the module and the classes that TensorRT-LLM's registry names for it.

Source: host contract §1, §2.
"""

OUR_MARKER: Final = '__distribution__ = "kvkeep-lmcache-preset"'
DISTRIBUTION: Final = "kvkeep-lmcache-preset"
CONNECTOR: Final = "adapter.connector"

_ABOUT: Final = "presets"
_REGISTRY: Final = "_torch/pyexecutor/connectors/registry.py"
_MAX_CHARS: Final = 1 << 20
_INSTALL: Final = f"pip install deploy/lmcache_preset, or name the module {CONNECTOR} instead"


@dataclass(frozen=True)
class Surroundings:
    """What an interpreter would find.

    Attributes:
        path: as ``sys.path``.
        version: of an installed distribution, or None.
    """

    path: Sequence[str]
    version: Callable[[str], str | None]

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process."""
        return cls(sys.path, version_of)


def findings(here: Surroundings | None = None) -> list[Finding]:
    """One for TensorRT-LLM's registry where it is installed, and one for each preset.

    Args:
        here: what is installed; this process's own by default.
    """
    here = here or Surroundings.here()
    host = _folder_of("tensorrt_llm", here.path)
    known = _registered(host) if host is not None else None
    found = []
    if host is not None and known is None:
        version = here.version("tensorrt_llm") or "of unknown version"
        text = f"TensorRT-LLM {version} in {host} has no presets"
        found.append(Finding(Level.NOTE, _ABOUT, text, f"name the module {CONNECTOR}"))
    for preset, (module, *_) in PRESETS.items():
        one = _judge(preset, module, here)
        if known is not None and preset not in known:
            text = f"{preset}: not known to the TensorRT-LLM in {host}"
            one = Finding(Level.NOTE, _ABOUT, text, f"name the module {CONNECTOR}")
        found.append(one)
    return found


def version_of(distribution: str) -> str | None:
    """The version of a distribution, if it is installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _judge(preset: str, module: str, here: Surroundings) -> Finding:
    folder = _folder_of("lmcache", here.path)
    real = here.version("lmcache")
    if folder is None:
        text = f"{preset}: leads nowhere, no package lmcache is installed"
        return Finding(Level.NOTE, _ABOUT, text, _INSTALL)
    file = folder.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if OUR_MARKER in _read(folder / "__init__.py"):
        if real is not None:
            text = f"{preset}: LMCache {real} and kvkeep's preset are both installed: it is refused"
            return Finding(Level.ERROR, _ABOUT, text, "uninstall one of them")
        if not file.is_file():
            text = f"{preset}: {file} is missing"
            return Finding(Level.ERROR, _ABOUT, text, _INSTALL)
        version = here.version(DISTRIBUTION) or "not installed, but found on sys.path"
        return Finding(Level.OK, _ABOUT, f"{preset}: leads to kvkeep ({DISTRIBUTION} {version})")
    text = f"{preset}: leads to LMCache {real or 'of unknown version'} in {folder}, not to kvkeep"
    if here.version(DISTRIBUTION) is not None:
        advice = f"uninstall one of the two; {DISTRIBUTION} is installed and is not reached"
        return Finding(Level.WARNING, _ABOUT, text, advice)
    return Finding(Level.NOTE, _ABOUT, text, f"kvkeep works beside it by the module {CONNECTOR}")


def _folder_of(package: str, path: Sequence[str]) -> Path | None:
    """The folder of a package of the top level, not imported."""
    try:
        spec = PathFinder.find_spec(package, list(path))
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _registered(host: Path) -> set[str] | None:
    """What may be a preset's name in TensorRT-LLM's registry; None where it has no such file."""
    text = _read(host / _REGISTRY)
    return set(re.findall(r"""["']([a-z][a-z0-9-]{2,40})["']""", text)) if text else None


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARS)
    except OSError:
        return ""
