"""Stands where TensorRT-LLM's presets look for LMCache, and leads to kvkeep.

It is not LMCache, and is refused beside it: whoever asks for a preset must not get the other of the
two by the order of sys.path. Imports nothing but the standard library.
"""

from importlib import metadata as _metadata

__distribution__ = "kvkeep-lmcache-preset"


def _refuse_over_lmcache() -> None:
    try:
        version = _metadata.version("lmcache")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"kvkeep-lmcache-preset stands in for LMCache, and LMCache {version} is installed as well: "
        "uninstall one of them. kvkeep's connector works beside LMCache by its own module name, "
        "adapter.connector.",
        name="lmcache",
    )


_refuse_over_lmcache()
