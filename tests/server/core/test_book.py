"""The quotas as the core hands them over to be kept."""

from __future__ import annotations

from protocol.quotas import QuotaChange, TenantKind
from server.core.effects import KeepQuotas
from tests.server.core.test_quotas import SALT, allot, space, two


def test_each_change_has_all_of_them_kept() -> None:
    world, a, _ = two()
    space(a, 3, 4)
    allot(a, SALT, 2)
    allot(a, SALT, 0)
    kept = [effect.quotas for effect in world.log if isinstance(effect, KeepQuotas)]
    assert [len(one) for one in kept] == [1, 2, 1]
    salt = QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=2 * 4096)
    assert kept[1] == (*kept[0], salt)
    assert kept[2] == kept[0]
