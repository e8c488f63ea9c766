"""Names seen lately: for a while, up to a number, and no longer once they are known to be gone."""

from server.tiers.interface import Name
from server.tiers.presence import Presence


def name(number: int, fingerprint: bytes = b"f" * 16) -> Name:
    return Name(fingerprint, number.to_bytes(16, "little"), 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_noted_is_there_for_a_while() -> None:
    clock = Clock()
    seen = Presence(clock, ttl_s=10)
    seen.note(name(1))
    clock.now_s += 9.9
    assert seen.has(name(1))
    assert not seen.has(name(2))
    seen.note(name(1))
    clock.now_s += 9.9
    assert seen.has(name(1))
    clock.now_s += 0.2
    assert not seen.has(name(1))


def test_only_so_many_and_the_oldest_goes() -> None:
    seen = Presence(Clock(), limit=3)
    for number in (1, 2, 3, 1, 4):
        seen.note(name(number))
    assert [seen.has(name(number)) for number in (1, 2, 3, 4)] == [True, False, True, True]


def test_forgotten_alone_or_as_a_namespace() -> None:
    seen = Presence(Clock())
    other = name(1, b"o" * 16)
    for one in (name(1), name(2), other):
        seen.note(one)
    seen.forget(name(1))
    seen.forget(name(9))
    assert [seen.has(one) for one in (name(1), name(2), other)] == [False, True, True]
    seen.forget_all(b"f" * 16)
    assert [seen.has(one) for one in (name(1), name(2), other)] == [False, False, True]
