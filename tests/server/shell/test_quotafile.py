"""The file of quotas: written whole, read again, and said where it is none."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.quotas import QuotaChange, TenantKind
from server.shell import quotafile

QUOTAS = (
    QuotaChange(kind=TenantKind.SALT, tenant=b"s" * 16, floor_bytes=5, limit_bytes=6),
    QuotaChange(kind=TenantKind.NAMESPACE, tenant=b"n" * 16, floor_bytes=7),
)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert quotafile.read(folder) == ((), "")
    quotafile.keep(folder, QUOTAS[:1])
    quotafile.keep(folder, QUOTAS)
    assert quotafile.read(folder) == (QUOTAS, "")
    assert os.stat(tmp_path / "quotas").st_mode & 0o777 == 0o600
    quotafile.keep(folder, ())
    quotafile.keep(folder, ())
    assert os.listdir(folder) == []


def test_what_cannot_be_read_is_said_and_stands_for_none(tmp_path: Path) -> None:
    path = tmp_path / "quotas"
    for data in (b"", b"\xff" * 40, b"\x81\xa6quotas\x91\x01"):
        path.write_bytes(data)
        found, why = quotafile.read(str(tmp_path))
        assert found == ()
        assert str(path) in why
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert quotafile.read(str(tmp_path))[0] == ()
