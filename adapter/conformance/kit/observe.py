"""Writes down what the host calls and what a connector answers, on the way through.

The classes made here stand between host and connector; whatever they do not know they hand on.
Must not know: rules. Calls are noted on whatever thread makes them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from adapter.trtllm_api import KvCacheConnectorScheduler

_SCHEDULER: Final = "Scheduler"
_WORKER: Final = "Worker"
BY_GROUP: Final = ("update_state_after_alloc_by_layer_group", "request_finished_by_layer_group")


@dataclass(frozen=True)
class Call:
    """One call of a hook.

    Attributes:
        hook: its name.
        request_id: of the request it is about, 0 for none.
        detail: lists as tuples, numbers as they are; requests and streams left out.
        answer: what came back; lists as tuples.
        error: what was raised, or None.
        elapsed_s: wall time.
    """

    hook: str
    request_id: int
    detail: tuple[Any, ...]
    answer: Any
    error: BaseException | None
    elapsed_s: float


class Log:
    """Every call of one engine, in order of its end.

    Attributes:
        before: called with a hook's name before the connector is.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.before: Callable[[str], None] = lambda hook: None
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    def add(self, call: Call) -> None:
        """Notes a call."""
        with self._lock:
            self._calls.append(call)

    def of(self, *hooks: str) -> list[Call]:
        """The calls of some hooks so far.

        Args:
            hooks: names; none for all.
        """
        with self._lock:
            return [call for call in self._calls if not hooks or call.hook in hooks]

    def mark(self) -> int:
        """A place in the log, for ``since``."""
        with self._lock:
            return len(self._calls)

    def since(self, mark: int, *hooks: str) -> list[Call]:
        """The calls of some hooks after a place."""
        with self._lock:
            return [c for c in self._calls[mark:] if not hooks or c.hook in hooks]


class Observed:
    """Stands before a scheduler or a worker.

    Attributes:
        inner: the connector's own object.
    """

    inner_class: type[Any]
    log: Log

    def __init__(self, llm_args: Any) -> None:
        """Constructs the connector's object.

        Args:
            llm_args: handed on.
        """
        self.inner = type(self).inner_class(llm_args)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name.startswith("_") or not callable(value):
            return value
        return _noted(name, value, type(self).log)


def overridden(scheduler: type[Any]) -> tuple[str, ...]:
    """The methods for layer groups, if a class has its own of each.

    Args:
        scheduler: the connector's class.
    """
    own = [name for name in BY_GROUP if hasattr(scheduler, name)]
    default = KvCacheConnectorScheduler
    is_all = len(own) == len(BY_GROUP) and not any(
        getattr(scheduler, name) is getattr(default, name, None) for name in own
    )
    return tuple(own) if is_all else ()


def _handed_on(name: str) -> Callable[..., Any]:
    """A method of the class, where hosts look for one: an instance's attributes do not count."""

    def method(self: Observed, *arguments: Any, **named: Any) -> Any:
        return _noted(name, getattr(self.inner, name), type(self).log)(*arguments, **named)

    return method


def _noted(name: str, function: Callable[..., Any], log: Log) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        request_id = next((int(a.request_id) for a in arguments if hasattr(a, "request_id")), 0)
        detail = tuple(_plain(a) for a in arguments if isinstance(a, (int, list, tuple)))
        answer, error = None, None
        began_s = time.perf_counter()
        try:
            log.before(name)
            answer = function(*arguments, **named)
            return answer
        except BaseException as caught:
            error = caught
            raise
        finally:
            elapsed_s = time.perf_counter() - began_s
            log.add(Call(name, request_id, detail, _plain(answer), error, elapsed_s))

    return call


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else value


def place(name: str, scheduler: type[Any], worker: type[Any], log: Log) -> tuple[str, str, str]:
    """Puts classes that observe a connector where a host finds them.

    Args:
        name: of the module that is made.
        scheduler: the connector's class.
        worker: the connector's class.
        log: takes the calls.

    Returns:
        Module name, scheduler class name, worker class name.
    """
    module = ModuleType(name)
    for label, inner in ((_SCHEDULER, scheduler), (_WORKER, worker)):
        opted_in = bool(getattr(inner, "supports_attention_dp", False))
        body = {"inner_class": inner, "log": log, "supports_attention_dp": opted_in}
        body |= {name: _handed_on(name) for name in overridden(inner)}
        setattr(module, label, type(label, (Observed,), body))
    sys.modules[name] = module
    return name, _SCHEDULER, _WORKER


@contextmanager
def observed(scheduler: type[Any], worker: type[Any], log: Log) -> Iterator[tuple[str, str, str]]:
    """A module that can be named in a connector config, for as long as the block lasts.

    Args:
        scheduler: the connector's class.
        worker: the connector's class.
        log: takes the calls.

    Yields:
        Module name, scheduler class name, worker class name.
    """
    names = place(f"{__name__}_{id(log):x}", scheduler, worker, log)
    try:
        yield names
    finally:
        del sys.modules[names[0]]
