"""What the helps say beside each command's own words: one line of the list, and examples.

Plain text by command. Must not know: how a command does it. Runs in: the process of the command
line, for each command; it imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: A command's line in ``kvkeep --help``, which cuts longer ones off.
SUMMARIES: Final[Mapping[str, str]] = {
    "bench": "Measure rates, latency and memory here.",
    "clear": "Forget a namespace, or all, in every tier.",
    "config": "Show the settings of launch and their sources.",
    "delete": "Forget prompts, or a tenant, in every tier.",
    "doctor": "Check this machine, and say how to mend it.",
    "events": "Follow what comes into L1 and goes.",
    "inspect": "Show what is cached of a namespace or prompt.",
    "launch": "Run the server.",
    "pin": "Keep prompts in L1 for a time.",
    "quota": "Keep tenants a share, or limit them.",
    "retire": "Forget namespaces that nobody uses.",
    "simulate": "Try sizes and tiers on a trace of requests.",
    "stats": "Show every counter of a server.",
    "status": "Show how a server is, and what is wrong.",
    "top": "Watch a server at work.",
    "unpin": "Let pinned prompts be evicted again.",
    "warm": "Load what lower tiers have into L1.",
}

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bench": ("kvkeep bench --quick", "kvkeep bench --json --seed 1"),
    "clear": ("kvkeep clear --namespace my-model", "kvkeep clear --all --yes"),
    "config": ("kvkeep config --l1-size 20G", "kvkeep config --json"),
    "delete": (
        "kvkeep delete --namespace my-model --tokens prompts.jsonl",
        "kvkeep delete --salt-file tenant-a.salt",
    ),
    "doctor": ("kvkeep doctor", "kvkeep doctor --json"),
    "events": ("kvkeep events", "kvkeep events --new --json"),
    "inspect": (
        "kvkeep inspect",
        "kvkeep inspect --namespace my-model --tokens prompts.jsonl",
    ),
    "launch": (
        "kvkeep launch",
        "kvkeep launch --l1-size 64G --http 9177",
        "kvkeep launch --l2 'disk:/mnt/nvme/kvkeep?size=2T'",
    ),
    "pin": ("kvkeep pin --namespace my-model --tokens system.jsonl --ttl 12h",),
    "quota": (
        "kvkeep quota set 20G --namespace my-model",
        "kvkeep quota set 8G --limit 16G --salt-file tenant-a.salt",
        "kvkeep quota list",
    ),
    "retire": ("kvkeep retire --unused-for 30d --dry-run", "kvkeep retire --yes"),
    "simulate": (
        "kvkeep simulate trace.jsonl --l1 200G",
        "kvkeep simulate trace.jsonl --l1 200G --l2 disk:4T --nodes 4",
    ),
    "stats": ("kvkeep stats", "kvkeep stats --json"),
    "status": ("kvkeep status", "kvkeep status --json"),
    "top": ("kvkeep top", "kvkeep top --once --json"),
    "unpin": ("kvkeep unpin --namespace my-model --tokens system.jsonl",),
    "warm": ("kvkeep warm --wait 60", "kvkeep warm --bytes 20G"),
}

FIRST: Final = (
    "kvkeep doctor          what this machine lacks",
    "kvkeep launch          in a terminal of its own",
    "kvkeep status          from another one",
)
"""What somebody new to it types."""


def epilog(name: str = "") -> str:
    """The end of a help, in click's own notation.

    Args:
        name: of a command; empty for the program itself.
    """
    heading = "Examples:" if name else "Begin with:"
    lines = EXAMPLES[name] if name else FIRST
    return "\n".join(("\b", heading, *(f"  {line}" for line in lines)))
