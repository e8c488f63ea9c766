"""The porters of all tiers: one keeper and one link for each.

Purpose: a tier's porter runs from the server's start to its end; one whose tier cannot be opened is
tried again, ever less often, and why is said. What a tier is goes to its porter over the socket, so
that no process list shows it. Must not know: what jobs are for, what tiers are made of. Runs in:
the main thread; ``PorterRole`` in the keepers' threads.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from server.core.effects import TierId
from server.porter.wire import (
    MAX_ANSWER_BYTES,
    Command,
    Kind,
    pack_command,
    unpack_answer,
)
from server.shell.keeper import Keeper
from server.shell.owedfiles import store_of
from server.shell.parties import Parties
from server.shell.porterlink import PorterLink
from server.shell.reports import (
    PorterAnswered,
    PorterEnded,
    PorterGone,
    PorterLost,
    PorterReady,
    PorterRefused,
    PorterStuck,
    Report,
    Reporter,
)
from server.tierspec import TierSpec, to_json

_log = logging.getLogger("kvkeep.server")

MODULE = "server.porter.main"

MAX_BACKOFF_S = 10.0
"""Longest pause before a tier that cannot be opened is tried again."""

END_TIMEOUT_S = 4.0
"""For a porter whose socket was closed: it ends after the jobs it is at, then closes its tier."""

_ROOT = str(Path(__file__).resolve().parents[2])


def porter_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of a porter.

    Args:
        environ: of this process.

    Returns:
        A copy with this installation first on the import path, and one numerics thread.
    """
    own = dict(environ)
    rest = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{rest}" if rest else _ROOT
    own["OPENBLAS_NUM_THREADS"] = "1"
    return own


def _is_new(folder: str) -> bool:
    """Whether there is nothing in a folder yet."""
    try:
        return not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # its porter says what is wrong with it


class PorterRole:
    """A porter as its keeper sees it.

    Args:
        tier: which one.
        spec: what it opens.
        module: what to run; takes the socket's number and this process's id.

    Attributes:
        was_tried: set once the tier was opened or could not be for the first time.
    """

    party: Literal["copier", "porter"] = "porter"
    max_backoff_s = MAX_BACKOFF_S
    end_timeout_s = END_TIMEOUT_S

    def __init__(self, tier: TierId, spec: TierSpec, module: str = MODULE) -> None:
        self.label = f"porter {spec.name}"
        self.was_tried = threading.Event()
        self._tier = tier
        self._spec = spec
        self._module = module
        self._new_ledger = ""

    def command(self, fd: int) -> list[str]:
        """What to run."""
        return [sys.executable, "-m", self._module, str(fd), str(os.getpid())]

    def environment(self) -> dict[str, str]:
        """Of the porter."""
        return porter_environment(os.environ)

    def greet(self, channel: socket.socket) -> None:
        """Tells it what its tier is."""
        folder = str(self._spec.options.get("ledger", ""))
        self._new_ledger = folder if folder and _is_new(folder) else ""
        channel.send(pack_command(Command(Kind.CONFIGURE, 0, text=to_json(self._spec))))

    def receive(self, channel: socket.socket) -> bytes:
        """The next packet."""
        return channel.recv(MAX_ANSWER_BYTES)

    def refusal(self, packet: bytes) -> str | None:
        """Why it is not ready."""
        answer = unpack_answer(packet)
        if answer.kind == Kind.READY and answer.error is None:
            return None
        return answer.error or "it talks nonsense"

    def ready(self, packet: bytes, pid: int, channel: socket.socket) -> Report:
        """It has opened its tier."""
        answer = unpack_answer(packet)
        self.was_tried.set()
        if self._new_ledger:
            text = "is new, and what was written to the store before counts for nobody"
            _log.info("ledger_new: %s: ledger=%s %s", self._spec.name, self._new_ledger, text)
        return PorterReady(self._tier, pid, channel, answer.used_bytes, answer.capacity_bytes)

    def answered(self, packet: bytes) -> Report:
        """It answered a command."""
        return PorterAnswered(self._tier, unpack_answer(packet))

    def lost(self) -> Report:
        """It is gone."""
        return PorterLost(self._tier)

    def stuck(self, life: int, pid: int) -> Report:
        """It was killed and does not end."""
        return PorterStuck(self._tier, life, pid)

    def gone(self, life: int) -> Report:
        """A stuck one is gone after all."""
        return PorterGone(self._tier, life)

    def refused(self, why: str) -> Report | None:
        """The server serves without the tier, and says why."""
        self.was_tried.set()
        return PorterRefused(self._tier, why)

    def ended(self) -> Report:
        """It is gone for good."""
        return PorterEnded(self._tier)


class Porters:
    """All of them.

    Args:
        specs: of the tiers, in the order of asking.
        make_reporter: a way to the loop for one more thread, by name.
        parties: writes down who may touch the arena; None to leave that out.
        module: what to run.

    Attributes:
        links: commands to each, by tier.
        specs: by tier.
        stores: what each keeps its values in, by tier.
    """

    def __init__(
        self,
        specs: Sequence[TierSpec],
        make_reporter: Callable[[str], Reporter],
        parties: Parties | None = None,
        module: str = MODULE,
    ) -> None:
        self.specs = {TierId(number): spec for number, spec in enumerate(specs)}
        self.stores = {tier: store_of(spec) for tier, spec in self.specs.items()}
        self.links = {tier: PorterLink() for tier in self.specs}
        self._reporters = {tier: make_reporter(f"porter-{tier}") for tier in self.specs}
        roles = {tier: PorterRole(tier, spec, module) for tier, spec in self.specs.items()}
        self._keepers = {
            tier: Keeper(role, self._reporters[tier], parties) for tier, role in roles.items()
        }
        self._tried = [role.was_tried for role in roles.values()]
        self._num_lost = dict.fromkeys(self.specs, 0)
        self._num_refused = dict.fromkeys(self.specs, 0)

    def start(self) -> None:
        """Starts the threads, and with them the porters."""
        for keeper in self._keepers.values():
            keeper.start()

    def settle(self, limit_s: float) -> None:
        """Waits until each tier was opened, or could not be for the first time.

        Args:
            limit_s: longest wait for all together, seconds.
        """
        end_s = time.monotonic() + limit_s
        for tried in self._tried:
            tried.wait(max(0.0, end_s - time.monotonic()))

    def threads(self) -> dict[str, Callable[[], bool]]:
        """By name, whether each thread runs."""
        return {f"porter-{tier}": keeper.is_alive for tier, keeper in self._keepers.items()}

    def name(self, tier: TierId) -> str:
        """Of a tier, for log lines."""
        return self.specs[tier].name

    def note_lost(self, tier: TierId) -> None:
        """A porter is gone, or stuck."""
        self._num_lost[tier] += 1
        self.links[tier].detach()

    def note_refused(self, tier: TierId) -> None:
        """A tier could not be opened."""
        self._num_refused[tier] += 1

    def abandon(self) -> None:
        """Has all of them end, without waiting."""
        for keeper in self._keepers.values():
            keeper.abandon()

    def stop(self, limit_s: float) -> bool:
        """Ends all of them, at the end of the server.

        Args:
            limit_s: longest wait for all together, seconds.

        Returns:
            Whether all ended.
        """
        self.abandon()
        end_s = time.monotonic() + limit_s
        stopped = [
            keeper.stop(max(0.0, end_s - time.monotonic())) for keeper in self._keepers.values()
        ]
        return all(stopped)

    def close_reporters(self) -> None:
        """Closes what the threads reported with; all have ended."""
        for reporter in self._reporters.values():
            reporter.close()

    def figures(self) -> dict[str, int]:
        """For STATS, by the tier's name; the process's number is 0 while none runs."""
        values: dict[str, int] = {}
        for tier, spec in self.specs.items():
            values[f"tier_{spec.name}_porter_pid"] = self.links[tier].pid
            values[f"tier_{spec.name}_porters_lost"] = self._num_lost[tier]
            values[f"tier_{spec.name}_open_refused"] = self._num_refused[tier]
        return values
