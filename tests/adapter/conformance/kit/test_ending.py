"""SIGTERM unwinds once; a second one does not break off what is being cleared up."""

from __future__ import annotations

import signal
import threading

import pytest

from adapter.conformance.kit.ending import TerminatedError, exit_code, unwinding


def test_sigterm_unwinds_once_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleared: list[str] = []

    def is_told_twice() -> None:
        with unwinding():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                cleared.append("all of it")

    with pytest.raises(TerminatedError) as caught:
        is_told_twice()
    assert cleared == ["all of it"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert exit_code(caught.value) == 143
    assert exit_code(KeyboardInterrupt()) == 130


def test_what_connectors_raise_is_caught_and_this_is_not() -> None:
    assert not issubclass(TerminatedError, Exception)


def test_other_threads_change_no_handler() -> None:
    seen: list[object] = []

    def look() -> None:
        with unwinding():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10.0)
    assert seen == [before]
