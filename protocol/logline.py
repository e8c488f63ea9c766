"""Log lines as JSON, what a line is about, and how often a kind of line may come.

Purpose: server, its children and engines write lines of one form, so that whoever collects them
reads one. A line's text is an operator's; what it is about are numbers and fingerprints, never
tokens, keys, salts or credentials. Must not know: where lines go, what time it is (a record holds
it). Runs in: every process, whichever thread logs.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

FORMATS: Final = ("text", "json")
ENV_FORMAT: Final = "KVKEEP_LOG_FORMAT"
TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LINES: Final = 20
INTERVAL_S: Final = 60.0
"""So many lines of one event in so long a time; the others are counted."""

MAX_EVENTS: Final = 256
"""Events that are counted apart. They are words of the source, and fewer than this."""

MAX_TEXT_CHARS: Final = 8192
"""Of one message, or one traceback."""

_WORD = re.compile(r"(?:kvkeep: )?(?!kvkeep: )([a-z][a-z0-9_]{2,40}): ")
"""An engine's lines begin with ``kvkeep: `` in the host's log, which says nothing of their kind."""
_FIELD: Final = "kvkeep_about"


class About(NamedTuple):
    """What one line is about; what is empty is left out.

    Attributes:
        event: stable word for this kind of line; empty for one found by ``event_of``.
        process: whose line it is, where that is not the process that writes it.
        op: operation's name.
        seq: the message's number on its connection, 0 for none.
        request: the engine's number of the request, as the wire has it; -1 for none.
        host_request: the host's number of it; -1 for none.
        engine: instance of the engine, or what its client calls itself.
        namespace: fingerprint, in hexadecimal digits.
        left_out: lines of this kind that were not written since the last one.
    """

    event: str = ""
    process: str = ""
    op: str = ""
    seq: int = 0
    request: int = -1
    engine: str = ""
    namespace: str = ""
    left_out: int = 0
    host_request: int = -1

    def __str__(self) -> str:
        """As people read it: ``STORE, request 7, of engine 0a…``; empty for nothing known."""
        words = [self.op] if self.op else []
        if self.seq:
            words.append(f"message {self.seq}")
        if self.request >= 0:
            words.append(f"request {self.request}")
        if self.host_request >= 0:
            words.append(f"the host's request {self.host_request}")
        if self.engine:
            words.append(f"engine {self.engine}")
        if self.namespace:
            words.append(f"namespace {self.namespace[:12]}")
        return ", ".join(words)


NOTHING: Final = About()


def extra(about: About) -> dict[str, About]:
    """For the ``extra`` of a logging call.

    Args:
        about: what the line is about.

    Returns:
        What the formatters here find it by.
    """
    return {_FIELD: about}


def about_of(record: logging.LogRecord) -> About:
    """What a record says that it is about, its event filled in."""
    found = getattr(record, _FIELD, None)
    about = found if isinstance(found, About) else NOTHING
    return about if about.event else about._replace(event=event_of(record))


def event_of(record: logging.LogRecord) -> str:
    """The word that a message begins with before a colon, or else its module's name.

    The message is looked at as the source has it, before anything is filled in: nobody outside
    can make up events.
    """
    found = _WORD.match(record.msg) if isinstance(record.msg, str) else None
    return found[1] if found is not None else record.module


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def __init__(self, process: str) -> None:
        """Takes the process's name.

        Args:
            process: ``server``, ``copier``, ``porter``, ``traces`` or ``adapter``.
        """
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line without its end."""
        about = about_of(record)
        error = self.formatException(record.exc_info) if record.exc_info else ""
        message = record.getMessage()
        return json_line(record.created, record.levelname, self._process, message, about, error)


def json_line(
    time_s: float,
    level: str,
    process: str,
    message: str,
    about: About = NOTHING,
    traceback: str = "",
) -> str:
    """One line.

    Args:
        time_s: seconds since 1970.
        level: as ``WARNING``.
        process: whose line it is, unless ``about`` says.
        message: for a person.
        about: what else is known; its event must be.
        traceback: of a fault of our own.

    Returns:
        No line feed in it.
    """
    fields: dict[str, Any] = {
        "time": rfc3339(time_s),
        "level": level,
        "process": about.process or process,
        "event": about.event or "line",
        "message": _cut(message),
    }
    fields |= dict(_known(about))
    if traceback:
        fields["traceback"] = _cut(traceback)
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def printable(text: str) -> str:
    """A text in which a peer's words may stand, on one line: no line of the log is made by them."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def public(text: str) -> str:
    """What a library says, without what an address in it has before its ``@``, and bounded.

    It is left out to the last ``@`` of the word: a password may have one, or a slash.
    """
    return re.sub(r"\S+", _without_credentials, text[:MAX_TEXT_CHARS])


def _without_credentials(word: re.Match[str]) -> str:
    scheme, slashes, rest = word[0].partition("//")
    return scheme + slashes + rest.rpartition("@")[2]


def rfc3339(time_s: float) -> str:
    """A time as ``2026-01-02T03:04:05.678Z``.

    Args:
        time_s: seconds since 1970.
    """
    text = datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _known(about: About) -> Iterator[tuple[str, Any]]:
    for name, nothing in (("op", ""), ("seq", 0), ("engine", ""), ("namespace", "")):
        value = getattr(about, name)
        if value != nothing:
            yield name, value
    if about.request >= 0:
        yield "request", about.request
    if about.host_request >= 0:
        yield "host_request", about.host_request
    if about.left_out:
        yield "left_out", about.left_out


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]} ... ({len(text) - MAX_TEXT_CHARS} characters left out)"


def wants_json(environ: Mapping[str, str]) -> bool:
    """Whether an environment asks for lines of JSON."""
    return environ.get(ENV_FORMAT, "").strip().lower() == FORMATS[1]


class Throttle:
    """Lets so many lines of each event through in an interval, and counts the others.

    Not safe from several threads at once: a handler's lock is held around it.
    """

    def __init__(self, lines: int = LINES, interval_s: float = INTERVAL_S) -> None:
        """Starts with nothing said.

        Args:
            lines: of one event in an interval.
            interval_s: its length, seconds.
        """
        self._lines = lines
        self._interval_s = interval_s
        #: By event: when its interval began, lines said in it, lines left out.
        self._events: dict[str, tuple[float, int, int]] = {}

    def admit(self, event: str, now_s: float) -> int:
        """Whether one more line may be written.

        Args:
            event: of the line.
            now_s: seconds since 1970.

        Returns:
            Lines of this event left out before it and not told yet; -1 when it is left out.
        """
        if event not in self._events and len(self._events) >= MAX_EVENTS:
            event = ""  # all further ones together
        begun_s, said, left_out = self._events.get(event, (now_s, 0, 0))
        if not 0 <= now_s - begun_s < self._interval_s:  # a clock that was set back, too
            begun_s, said = now_s, 0
        if said >= self._lines:
            self._events[event] = (begun_s, said, left_out + 1)
            return -1
        self._events[event] = (begun_s, said + 1, 0)
        return left_out

    def take_overdue(self, now_s: float) -> list[tuple[str, int]]:
        """Events whose interval is over and of which lines were left out; told by this.

        Events that were quiet since make room: a library's, once it is silent, keep none of ours
        from being counted apart.

        Args:
            now_s: seconds since 1970; infinite for all.
        """
        told = []
        for event, (begun_s, _, left_out) in list(self._events.items()):
            if now_s - begun_s < self._interval_s:
                continue
            del self._events[event]
            if left_out:
                told.append((event, left_out))
        return told
