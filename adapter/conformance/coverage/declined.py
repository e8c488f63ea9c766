"""What a cached engine does without, and where this host stays behind the contract.

Must not know: the adapter's code. Plain data; a test looks each named test up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Declined:
    """Something that a cached engine asks for and does not get.

    Attributes:
        what: the situation.
        instead: what happens.
        source: section of the host contract.
        test: file and function.
    """

    what: str
    instead: str
    source: str
    test: str


DECLINED: Final = (
    Declined(
        "a device match that ends inside a block (partial reuse on)",
        "nothing is offered to that request, it is saved all the same; one line says how to switch "
        "partial reuse off",
        "§9 rule 2",
        "tests/adapter/test_scheduler.py::test_an_unaligned_match_is_explained_once",
    ),
    Declined(
        "another request in the iteration of such a match",
        "nothing is offered: the host copies that page on a stream nobody can wait for",
        "§5",
        "tests/adapter/test_scheduler.py::test_no_load_beside_a_partial_match_of_the_same_iteration",
    ),
    Declined(
        "asynchronous loads where pages are freed under a running load",
        "loads are synchronous, one line says so",
        "§6, Cancelled/failed",
        "tests/adapter/test_worker_modes.py::test_a_mode_that_is_not_safe_here_is_not_taken",
    ),
    Declined(
        "loads by layer in an engine whose hooks do not fire for every layer",
        "the whole load is awaited before the forward",
        "§9 rule 14",
        "tests/adapter/test_worker_modes.py::test_an_engine_without_hooks_loads_whole",
    ),
    Declined(
        "a further offer of an engine that keeps 512 of them open (aggressive mode)",
        "nothing is offered to that request: each one pins what it names",
        "§5, Aggressive mode",
        "tests/adapter/test_scheduler_kept_offers.py::test_offers_that_are_kept_are_few",
    ),
    Declined(
        "media without digests, and other inputs that tokens do not tell",
        "that request is neither loaded nor saved",
        "§8",
        "tests/gaps/test_identity.py::test_row_07_salt_adapter_and_media_are_in_the_key",
    ),
)

UNPLAYED: Final = (
    (
        "V1 with a short sliding window, which ends its executor",
        "§11",
        "the adapter refuses such engines",
    ),
    (
        "`reserve_prefix` and its two companions",
        "§3, E4 optional",
        "all three or none: the adapter implements none, so no host calls them",
    ),
    (
        "a worker that is `capacity_only`: it moves nothing and gets no report",
        "§3, E4 optional",
        "the adapter's worker is none",
    ),
    (
        "a GPU: kernels, the driver, cudaMalloc'd and virtual-memory pools",
        "§5; §7",
        "host memory, shared or private, and a simulated CUDA device stand in",
    ),
)
"""What the conformance host does not play: what, section, what it does instead."""
