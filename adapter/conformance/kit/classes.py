"""The two classes of the connector under test: found, and seen to be what a host can call.

Only what is wrong whatever a rule would find is refused here. Must not know: rules, engines. Runs
in the kit's main thread; a module's own code runs while it is imported.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker


class ClassError(Exception):
    """There is no such connector, or it is none; the message says why, in a line."""


def load(module: str, scheduler_class: str, worker_class: str) -> tuple[type[Any], type[Any]]:
    """Imports a connector's classes.

    Args:
        module: its dotted name.
        scheduler_class: name in it.
        worker_class: name in it.

    Returns:
        Scheduler class and worker class.

    Raises:
        ClassError: they cannot be had, or are no connector's.
    """
    found = _imported(module)
    scheduler = _class(found, scheduler_class, KvCacheConnectorScheduler, "scheduler")
    worker = _class(found, worker_class, KvCacheConnectorWorker, "worker")
    return scheduler, worker


def _imported(name: str) -> ModuleType:
    parts = name.split(".")
    if not all(parts) or "/" in name or ":" in name:
        raise ClassError(
            f"no such connector: --module takes a dotted name, as in my.connector, not {name!r}; "
            "the folder it is in goes into PYTHONPATH"
        )
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ImportError as error:
        raise ClassError(f"no such connector: {error!r}") from None
    except BaseException as error:  # noqa: BLE001 - sys.exit() in a module is no verdict either
        raise ClassError(f"the connector cannot be loaded: {error!r}") from None


def _class(module: ModuleType, name: str, base: type[Any], role: str) -> type[Any]:
    where = f"{module.__name__}.{name}"
    try:
        found = getattr(module, name)
    except AttributeError as error:
        raise ClassError(f"no such connector: {error!r}") from None
    if not isinstance(found, type):
        raise ClassError(f"no connector: {where} is no class, but of type {type(found).__name__}")
    needed = sorted(getattr(base, "__abstractmethods__", ()))
    lacking = [one for one in needed if not callable(getattr(found, one, None))]
    if lacking and not hasattr(found, "__getattr__"):
        raise ClassError(
            f"no connector: {where} is no {role}'s class: it has no {', '.join(lacking)}"
        )
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    if abstract:
        raise ClassError(
            f"no connector: {where} cannot be constructed: it does not define {', '.join(abstract)}"
        )
    return found
