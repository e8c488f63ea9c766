"""How many copies a value gets."""

import threading

import pytest

from server.tiers import mooncakeheat
from server.tiers.interface import Name
from server.tiers.mooncakeheat import HALF_LIFE_S, Popularity

NAME = Name(bytes(16), b"k" * 16, 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("heat", "copies"), [(0, 1), (3, 1), (4, 2), (11, 2), (12, 3), (28, 4), (1_000_000, 4)]
)
def test_each_further_copy_stands_for_twice_as_many_readers(heat: int, copies: int) -> None:
    assert Popularity(1, 4).copies(NAME, heat) == copies


def test_reads_count_with_the_server_s_own_uses() -> None:
    popularity = Popularity(1, 4, Clock())
    for _ in range(3):
        popularity.note(NAME)
    assert popularity.copies(NAME, 0) == 1
    assert popularity.copies(NAME, 1) == 2
    assert popularity.copies(NAME._replace(shard=1), 1) == 1


def test_what_was_wanted_long_ago_counts_less() -> None:
    clock = Clock()
    popularity = Popularity(1, 4, clock)
    for _ in range(8):
        popularity.note(NAME)
    assert popularity.copies(NAME, 0) == 2
    clock.now = HALF_LIFE_S
    assert popularity.copies(NAME, 0) == 2  # four
    clock.now = 2 * HALF_LIFE_S
    assert popularity.copies(NAME, 0) == 1  # two
    popularity.note(NAME)
    popularity.note(NAME)
    assert popularity.copies(NAME, 0) == 2  # four again


@pytest.mark.parametrize(("replicas", "most"), [(2, 0), (2, 2), (3, 1)])
def test_without_a_higher_bound_all_have_as_many(replicas: int, most: int) -> None:
    popularity = Popularity(replicas, most)
    for _ in range(100):
        popularity.note(NAME)
    assert popularity.copies(NAME, 1000) == replicas


def test_names_are_bounded_and_the_silent_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncakeheat, "MAX_NAMES", 3)
    popularity = Popularity(1, 4, Clock())
    names = [NAME._replace(shard=shard) for shard in range(4)]
    for name in (*names[:3], *names[:1], *names[3:]):
        for _ in range(4):
            popularity.note(name)
    assert [popularity.copies(name, 0) for name in names] == [2, 1, 2, 2]


def test_many_threads_lose_no_read() -> None:
    clock = Clock()
    popularity = Popularity(1, 16, clock)

    def read() -> None:
        for _ in range(1000):
            popularity.note(NAME)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert popularity.copies(NAME, 0) == 1 + 9  # log2(1 + 4000 / 4) = 9.97
    assert popularity.copies(NAME, 100) == 1 + 10
