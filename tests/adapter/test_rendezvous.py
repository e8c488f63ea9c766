"""Scheduler and worker of one engine meet, whoever comes first; those of two engines do not."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass

from adapter.rendezvous import Party, Rendezvous, Role


@dataclass
class EqualArgs:
    """Compares by value and cannot be hashed, as the host's pydantic objects."""

    model: str = "m"


class Member:
    party: Party | None = None


def join(place: Rendezvous, args: object, role: Role) -> Member:
    member = Member()
    member.party = place.meet(args, role, member, Party, lambda: Party(args))
    return member


def test_concurrent_construction_meets_each_time() -> None:
    place = Rendezvous()
    for _ in range(200):
        args = EqualArgs()
        barrier, members = threading.Barrier(2), {}

        def construct(
            role: Role, args: object = args, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            members[role] = join(place, args, role)  # noqa: B023 - joined below

        threads = [threading.Thread(target=construct, args=(r,)) for r in ("scheduler", "worker")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert members["scheduler"].party is members["worker"].party


def test_equal_arguments_of_two_engines_stay_apart() -> None:
    place, first, second = Rendezvous(), EqualArgs(), EqualArgs()
    members = [join(place, first, "scheduler"), join(place, second, "worker")]
    assert members[0].party is not members[1].party


def test_a_second_engine_with_the_same_arguments_is_another_one() -> None:
    place, args = Rendezvous(), EqualArgs()
    old = [join(place, args, "scheduler"), join(place, args, "worker")]
    new = [join(place, args, "worker"), join(place, args, "scheduler")]
    assert old[0].party is old[1].party
    assert new[0].party is new[1].party
    assert old[0].party is not new[0].party


def test_the_registry_is_weak() -> None:
    place, args = Rendezvous(), EqualArgs()
    members = [join(place, args, "scheduler"), join(place, args, "worker")]
    gone = weakref.ref(members[0].party)
    assert len(place) == 1
    members.clear()
    gc.collect()
    assert gone() is None
    assert len(place) == 0


def test_an_address_used_again_does_not_mix_engines() -> None:
    place = Rendezvous()
    seen = []
    for _ in range(500):
        args = EqualArgs()
        worker = join(place, args, "worker")
        assert worker.party is not None
        assert worker.party.llm_args is args
        seen.append(id(args))
        del worker, args
    assert len(set(seen)) < len(seen)  # addresses did repeat, so the test tried what it says


def test_a_late_partner_after_the_first_is_gone_founds_anew() -> None:
    place, args = Rendezvous(), EqualArgs()
    first = join(place, args, "worker")
    party = first.party
    del first
    gc.collect()
    second = join(place, args, "worker")
    assert second.party is party  # its role was free again, and the party still stood
