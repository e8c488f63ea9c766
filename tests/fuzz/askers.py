"""The verbs of operators and routers: quotas of tenants, events, pages of what is held.

Knows what such clients ask; what must hold afterwards is checked elsewhere. Runs in the fuzzer's
process.
"""

from __future__ import annotations

from msgspec.structs import replace

from protocol import messages as m
from protocol.ids import Fingerprint
from protocol.quotas import TenantKind
from tests.fuzz.grammar import NAMES, Actor, Step
from tests.server.core.spaces import quota_of


class AskerVerbs(Actor):
    """Each method is a verb."""

    def quota(self, step: Step) -> None:
        """QUOTAS, of a namespace or of a salt; now and then of no change, or DELETE_SALT."""
        process = self.who(step.a)
        if process is not None:
            names = [Fingerprint(name) for name in NAMES]
            change = quota_of(names, step.b, step.c % 24, step.c // 24 % 24)
            if step.c // 576 % 3 == 1:
                change = replace(change, tier="a")
            body: m.Request = m.Quotas(change=change if step.b % 5 else None)
            if change.kind is TenantKind.SALT and step.b % 5 == 0:
                body = m.DeleteSalt(tenant=change.tenant, look=step.c % 3 == 0)
            self.ask(process, body, step)

    def follow(self, step: Step) -> None:
        """EVENTS from the beginning, from a place in the stream or from nowhere; SNAPSHOT."""
        process = self.who(step.a)
        if process is None:
            return
        told = self.truth.told
        cursor = (0, told, told, max(0, told - step.x % 9), step.x)[step.b % 5]
        bodies: tuple[m.Request, ...] = (
            m.Events(cursor=cursor, wait_ms=(0, 20, 60_000)[step.c % 3]),
            m.Events(cursor=cursor, max_events=1 + step.c % 3),
            m.Snapshot(),
            m.Snapshot(fingerprint=NAMES[step.x % len(NAMES)], position=step.x % 40),
        )
        self.ask(process, bodies[step.c // 3 % len(bodies)], step)
