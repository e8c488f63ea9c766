"""A ledger's folder is one server's, and one store's."""

import os
from pathlib import Path

import pytest

from server.tiers.disk.files import Files
from server.tiers.interface import TierError
from server.tiers.ledger.folder import held

WHO = rf"server \(pid {os.getppid()}, its porter {os.getpid()}\), .* each wants a folder of its own"


def test_it_is_made_and_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    held(Files(), str(folder), "s3://bucket").release()
    assert (folder / "store").read_text() == "s3://bucket\n"
    assert folder.stat().st_mode & 0o077 == 0
    held(Files(), str(folder), "s3://bucket").release()


def test_only_the_last_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(TierError, match=r"ledger=.*is a disk not mounted"):
        held(Files(), str(tmp_path / "absent" / "ledger"), "s3://bucket")


def test_another_server_is_told_to_have_its_own(tmp_path: Path) -> None:
    first = held(Files(), str(tmp_path), "s3://bucket")
    with pytest.raises(TierError, match=WHO):
        held(Files(), str(tmp_path), "s3://bucket", dying_s=0.0)
    first.release()


def test_a_ledger_of_another_store_is_refused_and_what_to_do_is_said(tmp_path: Path) -> None:
    held(Files(), str(tmp_path), "s3://bucket").release()
    with pytest.raises(TierError, match="is of s3://bucket, and this is valkey://a:1"):
        held(Files(), str(tmp_path), "valkey://a:1")
    (tmp_path / "store").unlink()
    held(Files(), str(tmp_path), "valkey://a:1").release()
