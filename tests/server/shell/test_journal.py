"""Log lines go out in order, and never hold up who logs."""

from __future__ import annotations

import json
import logging
import os
import threading
import time

from protocol.logline import JsonFormatter, Throttle
from server.shell.journal import MAX_CHARS, MAX_LINES, Journal


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "f", 1, text, arguments, None)


def test_lines_are_written_in_order_and_waited_for() -> None:
    read, write = os.pipe()
    journal = Journal(write)
    for number in range(500):
        journal.emit(record("line %d", number))
    assert journal.finish(10)
    assert os.read(read, 1 << 16) == b"".join(b"line %d\n" % n for n in range(500))
    journal.emit(record("%d", "no number"))
    assert journal.finish(10)
    assert b"could not be formatted" in os.read(read, 1 << 16)
    os.close(read)
    journal.emit(record("into a closed pipe"))
    assert journal.finish(10)
    os.close(write)


def test_a_pipe_that_nobody_reads_holds_up_nobody_and_losses_are_told() -> None:
    read, write = os.pipe()
    journal = Journal(write)
    begun_s = time.monotonic()
    for _ in range(4 * MAX_LINES):
        journal.emit(record("x" * 1000))
    assert not journal.finish(0.2)
    assert time.monotonic() - begun_s < 5
    assert journal.num_lost >= 2 * MAX_LINES
    collected: list[bytes] = []

    def drain() -> None:
        while data := os.read(read, 1 << 16):
            collected.append(data)

    reader = threading.Thread(target=drain)
    reader.start()
    assert journal.finish(10)
    journal.emit(record("the last"))
    assert journal.finish(10)
    os.close(write)
    reader.join(10)
    os.close(read)
    text = b"".join(collected).decode()
    assert "log lines were lost" in text
    assert text.endswith("the last\n")
    assert text.count("x" * 1000) + journal.num_lost == 4 * MAX_LINES


def test_a_stdout_that_cannot_be_written_is_told_on_stderr() -> None:
    read, write = os.pipe()
    journal = Journal(write)
    closed = os.dup(write)
    os.close(closed)
    journal.write(closed, "ready\n")
    assert journal.finish(10)
    assert b"could not be written" in os.read(read, 1 << 16)
    os.close(read)
    os.close(write)


def test_a_record_of_a_megabyte_is_cut() -> None:
    read, write = os.pipe()
    journal = Journal(write)
    journal.emit(record("x" * (1 << 20)))
    assert journal.finish(10)
    line = os.read(read, 1 << 21)
    assert MAX_CHARS < len(line) < MAX_CHARS + 100
    assert line.endswith(b" characters left out)\n")
    os.close(read)
    os.close(write)


def test_of_one_event_so_many_are_written_and_the_rest_is_told_at_the_end() -> None:
    read, write = os.pipe()
    journal = Journal(write, Throttle(lines=2, interval_s=60))
    journal.setFormatter(JsonFormatter("server"))
    for number in range(10):
        journal.emit(record("flood: %d", number))
    journal.emit(record("calm: %s", "é" * 20_000))
    assert journal.finish(10)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as file:
        told = [json.loads(line) for line in file]
    assert [(one["event"], one.get("left_out", 0)) for one in told] == [
        ("flood", 0),
        ("flood", 0),
        ("calm", 0),
        ("flood", 8),
    ]


def test_what_the_log_says_of_itself_has_its_form() -> None:
    read, write = os.pipe()
    journal = Journal(write)
    journal.setFormatter(JsonFormatter("server"))
    journal.emit(record("%d", "no number"))
    journal.num_lost = 3
    journal.emit(record("last"))
    assert journal.finish(10)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as file:
        events = sorted(json.loads(line)["event"] for line in file)
    assert events.count("journal") == 2
