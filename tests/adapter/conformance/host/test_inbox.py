import threading
import time
from concurrent.futures import Future

import pytest

from adapter.conformance.host.inbox import Command, Inbox


def test_commands_come_out_in_order_and_all_at_once() -> None:
    inbox = Inbox()
    future: Future[int] = Future()
    commands: list[Command] = [3, future, 4, None]
    assert all(inbox.put(command) for command in commands)
    assert inbox.take(None) == commands
    assert inbox.take(0) == []


def test_taking_waits_for_the_first_command_only() -> None:
    inbox = Inbox()
    begin_s = time.monotonic()
    assert inbox.take(0.02) == []
    assert time.monotonic() - begin_s >= 0.02
    taken: list[Command] = []
    thread = threading.Thread(target=lambda: taken.extend(inbox.take(None)))
    thread.start()
    inbox.put(7)
    thread.join(10)
    assert taken == [7]


def test_a_closed_inbox_refuses_and_hands_out_the_rest() -> None:
    inbox = Inbox()
    inbox.put(1)
    assert inbox.close() == [1]
    assert not inbox.put(2)
    assert inbox.close() == []


@pytest.mark.parametrize("end", [3, None], ids=["cancel", "stop"])
def test_a_stop_or_a_cancel_can_be_seen_before_it_is_taken(end: int | None) -> None:
    inbox, wish = Inbox(), Future[int]()
    inbox.put(wish)
    before = inbox.wants_end
    inbox.put(end)
    during = inbox.wants_end
    assert inbox.take(0)[-1] == end
    assert (before, during, inbox.wants_end) == (False, True, False)
