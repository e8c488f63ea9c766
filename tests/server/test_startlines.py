"""The lines that a start prints: where to find the server, what it has, and what it kept."""

from __future__ import annotations

import os

from server import config, startlines
from server.core.config import Adopted
from server.gathering import COMMAND_LINE, Gathered, Given

PLACE = startlines.Place("/run/k.side", "/dev/shm/k", 64 << 20, 1 << 20)


def settings(**values: str) -> config.ServerConfig:
    given = {key: Given(text, COMMAND_LINE) for key, text in values.items()}
    return config.parse(Gathered(given), {})


def test_it_names_endpoint_arena_tiers_and_how_long_it_took() -> None:
    told = settings(endpoint="ipc:///run/k", l2="disk:/var/t?size=1G&name=cold")
    assert startlines.ready(told, PLACE, Adopted(), 0.5) == (
        "kvkeep ready: endpoint ipc:///run/k, side socket /run/k.side, arena 64 MiB in /dev/shm/k "
        f"(extents of 1 MiB), tiers L1 > cold, pid {os.getpid()}, started in 0.50 s\n"
    )
    assert startlines.serving(told, PLACE, Adopted()) == "serving 64 MiB at ipc:///run/k"


def test_what_was_adopted_is_told_with_its_size_and_time() -> None:
    adopted = Adopted(4, 16 << 20, 0.25)
    told = settings(endpoint="ipc:///run/k")
    line = startlines.ready(told, PLACE, adopted, 0.5)
    assert ", tiers L1, adopted 4 chunks in 0.25 s (16 MiB), pid " in line
    assert startlines.serving(told, PLACE, adopted).endswith(
        "; adopted 4 chunks in 0.25 s (16 MiB)"
    )


def test_pages_have_a_line_of_their_own() -> None:
    assert startlines.pages("http://127.0.0.1:9500/") == "kvkeep pages: http://127.0.0.1:9500/\n"
