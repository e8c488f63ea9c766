"""Servers that are gone: unmapped when their offers are over, and each later one is told."""

from __future__ import annotations

import logging
import mmap
import socket

import pytest

from adapter import formers as formers_module
from adapter.extents import ExtentTable, MappedExtent
from adapter.formers import MAX_FORMERS, MAX_NEWS, MAX_TOKENS, Formers
from adapter.journal import Journal
from adapter.mapper import Mapper
from adapter.openoffers import OpenOffers
from protocol import side
from protocol.ids import ArenaId, Epoch, Token
from protocol.side import Drained
from tests.adapter.responder import ExtentFile, geometry, namespace, until

EPOCHS = [Epoch(bytes([number]) * 16) for number in range(100)]
TOKENS = [Token(bytes([number, 1] * 8)) for number in range(100)]
SECOND = 10**9


class Bench:
    """A link's parts with extents of some servers mapped; the mapper runs."""

    def __init__(self, quiet_s: float = 3.0) -> None:
        self.table = ExtentTable(lambda: None)
        self.mapper = Mapper(self.table, Journal(logging.getLogger("kvkeep.test")), lambda: None)
        self.offers = OpenOffers()
        self.formers = Formers(self.table, self.mapper, self.offers, quiet_s)
        self.mapper.start()

    def map(self, epoch: Epoch) -> None:
        file = ExtentFile(geometry(1, namespace()), ArenaId(bytes(16)))
        mapping = mmap.mmap(file.fd, file.geometry.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self.table.add(MappedExtent(epoch, file.geometry, mapping))
        file.close()

    def settle(self) -> None:
        self.formers.turn()
        until(lambda: not self.table.idle_taken())
        self.formers.turn()

    def close(self) -> None:
        self.table.take_all()
        self.mapper.stop()
        assert self.mapper.join(5)
        self.formers.close()
        for epoch in EPOCHS:
            assert not formers_module._READERS.has(epoch)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def word(number: int) -> Drained:
    return Drained(epoch=EPOCHS[number], token=TOKENS[number])


def test_what_is_over_is_unmapped_and_told_once_in_each_stay(bench: Bench) -> None:
    bench.offers.lead()
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    bench.map(EPOCHS[0])
    bench.settle()
    assert bench.table.get(1, EPOCHS[0]) is not None
    assert bench.formers.news(1) == []
    bench.formers.welcome(EPOCHS[1], TOKENS[1])
    bench.map(EPOCHS[1])
    bench.settle()
    assert bench.table.get(1, EPOCHS[0]) is None
    assert bench.formers.news(2) == [word(0)]
    assert bench.formers.news(2) == []
    bench.formers.welcome(EPOCHS[2], TOKENS[2])
    bench.settle()
    assert bench.formers.news(3) == [word(0), word(1)]
    bench.close()


def test_nothing_is_unmapped_while_an_offer_is_open(bench: Bench) -> None:
    bench.offers.lead()
    bench.offers.asking(EPOCHS[0])
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    bench.map(EPOCHS[0])
    bench.formers.welcome(EPOCHS[1], TOKENS[1])
    bench.formers.welcome(EPOCHS[2], TOKENS[2])
    bench.settle()
    assert bench.table.get(1, EPOCHS[0]) is not None
    assert bench.formers.news(2) == [word(1)]
    bench.offers.built(1, [], [])
    bench.settle()
    assert bench.formers.news(2) == [word(0)]
    bench.close()


def test_an_extent_that_is_used_is_not_drained(bench: Bench) -> None:
    bench.offers.lead()
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    bench.map(EPOCHS[0])
    watch = bench.formers.watch(EPOCHS[0])
    with bench.table.hold(EPOCHS[0], [1]):
        assert not bench.formers.is_over(watch)
        bench.formers.welcome(EPOCHS[1], TOKENS[1])
        bench.settle()
        assert bench.formers.news(1) == []
    assert bench.formers.is_over(watch)
    bench.settle()
    assert bench.formers.news(1) == [word(0)]
    bench.close()


def test_time_in_which_the_process_stood_still_does_not_count(bench: Bench) -> None:
    bench.formers.tick(0)
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    bench.map(EPOCHS[0])
    assert bench.formers.next_ns(0) is None
    bench.formers.welcome(EPOCHS[1], TOKENS[1])
    assert bench.formers.next_ns(0) == 3 * SECOND
    bench.formers.tick(100 * SECOND)
    bench.settle()
    assert bench.formers.news(1) == []
    assert bench.formers.next_ns(100 * SECOND) == 101 * SECOND
    bench.formers.tick(101 * SECOND)
    bench.settle()
    assert bench.formers.news(1) == [word(0)]
    assert bench.formers.next_ns(101 * SECOND) is None
    bench.close()


def test_a_server_that_takes_us_in_again_is_no_former_one(bench: Bench) -> None:
    bench.offers.lead()
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    bench.formers.welcome(EPOCHS[1], TOKENS[1])
    bench.formers.welcome(EPOCHS[0], TOKENS[2])
    bench.settle()
    assert bench.formers.news(1) == [word(1)]
    bench.formers.welcome(EPOCHS[2], TOKENS[3])
    bench.settle()
    told = bench.formers.news(2)
    assert [drained.token for drained in told] == [TOKENS[1], TOKENS[0], TOKENS[2]]
    bench.close()


def test_the_word_is_for_all_links_of_the_process(bench: Bench) -> None:
    other = Bench()
    for one in (bench, other):
        one.offers.lead()
        one.formers.welcome(EPOCHS[0], TOKENS[0])
    other.offers.asking(EPOCHS[0])
    for one in (bench, other):
        one.formers.welcome(EPOCHS[1], TOKENS[1])
        one.settle()
    assert bench.formers.news(1) == []
    other.offers.built(1, [], [])
    other.settle()
    assert other.formers.news(1) == [word(0)]
    assert bench.formers.news(1) == [word(0)]
    bench.formers.close()
    other.close()
    bench.close()


def test_all_is_told_in_portions_that_a_socket_has_room_for(bench: Bench) -> None:
    bench.offers.lead()
    for number in range(40):
        for token in range(MAX_TOKENS):
            bench.formers.welcome(EPOCHS[number], Token(bytes([number, token] * 8)))
    bench.formers.welcome(EPOCHS[40], TOKENS[40])
    bench.settle()
    told: list[side.FromClient] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        while news := bench.formers.news(1):
            assert len(news) <= MAX_NEWS
            for drained in news:  # nobody reads meanwhile
                ours.send(side.pack(drained))
            told += [side.unpack_from_client(theirs.recv(4096)) for _ in news]
    assert len({side.pack(one) for one in told}) == len(told) == 40 * MAX_TOKENS
    bench.close()


def test_what_is_remembered_is_bounded(bench: Bench) -> None:
    bench.offers.lead()
    for token in TOKENS[: MAX_TOKENS + 5]:
        bench.formers.welcome(EPOCHS[0], token)
    for number in range(1, 100):
        bench.formers.welcome(EPOCHS[number], TOKENS[number])
        bench.settle()
    told = bench.formers.news(1)
    assert len(told) == MAX_FORMERS - 1
    assert told[-1] == word(98)
    assert bench.formers.news(1) == []
    bench.formers.welcome(EPOCHS[0], TOKENS[0])
    assert len(bench.formers._met) == MAX_FORMERS
    bench.close()
