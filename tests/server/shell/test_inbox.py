"""Nothing put in is lost, whoever waits is woken."""

import select
import threading

from server.shell.inbox import Inbox


def test_items_come_out_in_order_and_wake_the_reader() -> None:
    inbox: Inbox[int] = Inbox()
    poller = select.poll()
    poller.register(inbox.fd, select.POLLIN)
    assert not poller.poll(0)
    assert inbox.take_all() == []

    def write() -> None:
        for number in range(5000):
            inbox.put(number)

    thread = threading.Thread(target=write)
    thread.start()
    taken: list[int] = []
    while len(taken) < 5000:
        assert poller.poll(10_000)
        taken += inbox.take_all()
    thread.join()
    assert taken == list(range(5000))
    inbox.close()
