"""How ``make slow`` judges what the fuzzers wrote.

Knows the documents of this folder's programs. Runs in the runner's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.slow.figure import Figure

EXECUTIONS, SEQUENCES = 10_000_000, 200_000
PLANTS = 10
PLANT_S = 120.0
GROWTH_MIB = 16.0


def read_fuzz(document: Mapping[str, Any], quick: bool) -> dict[str, Figure]:
    """Counts, rates and findings of a run.

    Args:
        document: as ``python -m tests.fuzz --json`` writes it.
        quick: whether it was a short one, whose counts are not judged.
    """
    parts = document["figures"]
    decode, sequence = parts["decode"], parts["sequence"]
    done, played = int(decode["executions"]), int(sequence["sequences"])
    fewest, share = int(sequence["fewest_messages"]), float(sequence["dispatched_share"])
    grown = max(float(decode["growth_mib"]), float(sequence["growth_mib"]))
    finding = document["finding"]
    found = "none" if finding is None else str(finding["what"])
    return {
        "findings": Figure(found, "none", finding is None),
        "decoder executions": Figure(done, f">= {EXECUTIONS}", quick or done >= EXECUTIONS),
        "sequences": Figure(played, f">= {SEQUENCES}", quick or played >= SEQUENCES),
        "fewest messages of a sequence": Figure(fewest, ">= 20", fewest >= 20),
        "messages that reached dispatch": Figure(share, ">= 0.5", share >= 0.5),
        "memory grown, MiB": Figure(grown, f"< {GROWTH_MIB}", grown < GROWTH_MIB),
        "decoder executions per core second": Figure(decode["per_core_second"]),
        "sequences per core second": Figure(sequence["per_core_second"]),
        "slowest decoder execution by the clock, ms": Figure(decode["slowest_wall_ms"]),
    }


def read_plants(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Seconds until each planted fault was found.

    Args:
        document: as ``python -m tests.fuzz --plant all --json`` writes it.
    """
    plants = document["figures"]["plants"]
    figures = {}
    for name, one in plants.items():
        seconds = one["seconds"]
        met = seconds is not None and seconds <= PLANT_S
        figures[f"{name} found, s"] = Figure(seconds, f"<= {PLANT_S:.0f}", met)
    figures["plants"] = Figure(len(plants), f">= {PLANTS}", len(plants) >= PLANTS)
    return figures


def read_branches(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Branches of the decoders and of dispatch.

    Args:
        document: as ``python -m tests.fuzz.branches --json`` writes it.
    """
    lost = int(document["lost"])
    return {
        "branches neither reached nor excused": Figure(lost, "0", lost == 0),
        "branches reached of protocol and dispatch": Figure(
            f"{document['strict']} of {document['strict_all']}"
        ),
        "branches reached of server/core": Figure(f"{document['core']} of {document['core_all']}"),
        "lines excused": Figure(document["excused"]),
    }
