"""Engines by kind: opened as they are, and one that is not installed is told in one line."""

from pathlib import Path

import pytest

from server.porter import engines
from server.tieroptions import KINDS
from server.tiers.interface import Sharing, TierError
from server.tierspec import parse
from tests.server.porter.memorytier import MemoryTier


def test_there_is_a_module_for_each_kind() -> None:
    assert set(engines._MODULES) == set(KINDS)


def test_an_engine_is_opened_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines._MODULES, "disk", "tests.server.porter.memorytier")
    assert isinstance(engines.open_tier(parse("disk:/x?size=1G")), MemoryTier)
    with pytest.raises(TierError, match="asleep"):
        engines.open_tier(parse("disk:/refuses?size=1G"))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines._MODULES, "s3", "server.absent")
    with pytest.raises(TierError) as caught:
        engines.open_tier(parse("s3://bucket"))
    assert "pip install 'obstore>=" in str(caught.value)


def test_a_ledger_is_put_beside_a_store_whose_url_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(engines._MODULES, "s3", "tests.server.porter.memorytier")
    assert not isinstance(engines.open_tier(parse("s3://bucket")), Sharing)
    tier = engines.open_tier(parse(f"s3://bucket?ledger={tmp_path}/ledger"))
    assert isinstance(tier, Sharing)
    tier.close()
    with pytest.raises(TierError, match=r"ledger=.*is of s3://bucket, and this is s3://other"):
        engines.open_tier(parse(f"s3://other?ledger={tmp_path}/ledger"))
