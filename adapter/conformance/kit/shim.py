"""Compares our idea of the host's interface with an installed TensorRT-LLM's.

For each class that ``adapter.trtllm_fallback`` stands in for: methods and their positional
parameters, class attributes, dataclass fields, abstract methods that our connector lacks. A
difference is no error by itself, since epochs differ; it says where the contract this adapter was
written from no longer tells the whole. What lies around them is in ``shim_around``. Must not know:
engines. Runs in the kit's main thread.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from adapter import connector, trtllm_fallback
from adapter.conformance.kit.shim_around import around
from adapter.trtllm_api import (
    CONFORMANCE_FEATURES,
    CONNECTOR_MODULES,
    EpochFeatures,
    epoch_features,
    find_host_module,
)

_CLASSES: Final = (
    ("KvCacheConnectorScheduler", trtllm_fallback.FallbackScheduler),
    ("KvCacheConnectorWorker", trtllm_fallback.FallbackWorker),
    ("RequestData", trtllm_fallback.FallbackRequestData),
    ("SchedulerOutput", trtllm_fallback.FallbackSchedulerOutput),
)

_OURS: Final = {
    "KvCacheConnectorScheduler": connector.KvkeepConnectorScheduler,
    "KvCacheConnectorWorker": connector.KvkeepConnectorWorker,
}


@dataclasses.dataclass(frozen=True)
class ShimReport:
    """What differs.

    Attributes:
        module: where the host's interface was found, or empty.
        absent_because: why none was found.
        differences: one line each.
        epoch: which epoch of the contract it looks like, in words; empty without a host.
    """

    module: str
    absent_because: str
    differences: tuple[str, ...]
    epoch: str = ""


def compare_installed(
    load: Callable[[str], ModuleType] = importlib.import_module,
) -> ShimReport:
    """Looks for a host and compares with it, as far as it can be.

    Args:
        load: imports a module by its dotted name.
    """
    host, reason = find_host_module(load)
    if host is None:
        return ShimReport("", reason, ())
    epoch, told = "nothing known", list[str]()
    try:
        epoch = resembled(host)
        for line in itertools.chain(compare(host), around(load, epoch[:2])):
            told.append(line)
    except Exception as error:  # noqa: BLE001 - what rules found is told whatever a host is like
        told.append(f"not compared any further: {error!r}")
    return ShimReport(host.__name__, "", tuple(told), epoch)


def resembled(host: ModuleType) -> str:
    """The epoch that an interface module looks like, by what it has.

    Args:
        host: one of ``CONNECTOR_MODULES``, or anything that looks like it.
    """
    base = getattr(host, "KvCacheConnectorScheduler", object)
    found = epoch_features(base, getattr(host, "RequestData", object))
    if found in CONFORMANCE_FEATURES.values():
        return next(name for name, features in CONFORMANCE_FEATURES.items() if features == found)

    def unlike(features: EpochFeatures) -> list[str]:
        one, other = dataclasses.asdict(found), dataclasses.asdict(features)
        return [
            f"{'has' if one[name] else 'no'} {name}" for name in one if one[name] != other[name]
        ]

    name = min(CONFORMANCE_FEATURES, key=lambda epoch: len(unlike(CONFORMANCE_FEATURES[epoch])))
    return f"{name}, but: {', '.join(unlike(CONFORMANCE_FEATURES[name]))}"


def compare(host: ModuleType) -> Iterator[str]:
    """Compares one interface module.

    Args:
        host: one of ``CONNECTOR_MODULES``, or anything that looks like it.

    Yields:
        One line per difference.
    """
    if host.__name__ not in CONNECTOR_MODULES:
        yield f"the interface was found in {host.__name__}, which is none of the known places"
    for name, expected in _CLASSES:
        found = getattr(host, name, None)
        if not isinstance(found, type):
            yield f"{name}: not there"
            continue
        yield from _methods(name, found, expected)
        yield from _attributes(name, found, expected)
        yield from _fields(name, found, expected)
        ours = _OURS.get(name)
        if ours is not None:
            yield from _abstract(name, found, ours)


def _methods(name: str, found: type, expected: type) -> Iterator[str]:
    theirs, ours = _public(found), _public(expected)
    for method in sorted(ours.keys() - theirs.keys()):
        yield f"{name}.{method}: not there in this version"
    for method in sorted(theirs.keys() - ours.keys()):
        connector_class = _OURS.get(name)
        known = connector_class is not None and hasattr(connector_class, method)
        yield f"{name}.{method}: only there, {'implemented' if known else 'not implemented'} by us"
    for method in sorted(theirs.keys() & ours.keys()):
        there, here = _positional(theirs[method]), _positional(ours[method])
        if there != here:
            yield f"{name}.{method}: takes ({', '.join(there)}), not ({', '.join(here)})"


def _public(cls: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(cls, callable)
        if not name.startswith("_") and name not in dir(object) and not isinstance(value, type)
    }


def _positional(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["?"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds and one.name != "self"]


def _attributes(name: str, found: type, expected: type) -> Iterator[str]:
    theirs, ours = _plain(found), _plain(expected)
    for attribute in sorted(ours.keys() - theirs.keys()):
        yield f"{name}.{attribute}: no such attribute in this version"
    for attribute in sorted(theirs.keys() - ours.keys()):
        yield f"{name}.{attribute}: an attribute only there, {theirs[attribute]!r}"
    for attribute in sorted(theirs.keys() & ours.keys()):
        if theirs[attribute] != ours[attribute]:
            yield f"{name}.{attribute}: {theirs[attribute]!r}, not {ours[attribute]!r}"


def _plain(cls: type) -> dict[str, Any]:
    fields = getattr(cls, "__dataclass_fields__", {})
    return {
        name: value
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and name not in fields and isinstance(value, (bool, int, str))
    }


def _fields(name: str, found: type, expected: type) -> Iterator[str]:
    theirs = set(getattr(found, "__dataclass_fields__", {}))
    ours = {field.name for field in dataclasses.fields(expected)} if _is_data(expected) else set()
    for field in sorted(ours - theirs):
        yield f"{name}.{field}: no such field in this version"
    for field in sorted(theirs - ours):
        yield f"{name}.{field}: a field only there"


def _is_data(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def _abstract(name: str, found: type, ours: type) -> Iterator[str]:
    for method in sorted(getattr(found, "__abstractmethods__", ())):
        if getattr(ours, method, None) is None:
            yield f"{name}.{method}: abstract there and not implemented by us"
