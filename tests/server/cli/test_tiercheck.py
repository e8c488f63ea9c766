"""Doctor on lower tiers: packages that are missing, URLs that are wrong, disks that are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.extras import install
from server.cli import tiercheck
from server.cli.findings import Level
from server.tieroptions import KINDS


def test_each_kind_has_its_packages_and_a_module_that_is_none_is_not_there() -> None:
    assert set(tiercheck.PACKAGES) == set(KINDS)
    assert tiercheck.has_module("lmdb")
    assert not tiercheck.has_module("no_such_module_anywhere")


def test_without_tiers_it_says_what_could_be_used() -> None:
    [found] = tiercheck.findings({}, lambda name: name not in ("mooncake", "glide_sync"))
    assert found.level is Level.NOTE
    assert "disk, s3" in found.text
    assert found.advice == install("mooncake", "valkey")
    [whole] = tiercheck.findings({}, lambda name: True)
    assert whole.advice == ""


def test_a_wrong_url_is_an_error_without_its_secret() -> None:
    [found] = tiercheck.findings({"KVKEEP_L2": "valkey://me:hunter2@h:1"})
    assert found.level is Level.ERROR
    assert "hunter2" not in found.text
    assert "no place in the URL" in found.text


def test_a_package_that_is_missing_is_named() -> None:
    [found] = tiercheck.findings({"KVKEEP_L2": "s3://bucket"}, lambda name: name != "obstore")
    assert found.level is Level.ERROR
    assert "obstore cannot be imported" in found.text
    assert found.advice == install("s3")
    [able] = tiercheck.findings({"KVKEEP_L2": "s3://bucket"}, lambda name: True)
    assert able.level is Level.OK


@pytest.mark.parametrize(("size", "level"), [("16M", Level.OK), ("1024T", Level.WARNING)])
def test_a_disk_and_its_room(tmp_path: Path, size: str, level: Level) -> None:
    environ = {"KVKEEP_L2": f"disk:{tmp_path}/notyet?size={size} disk:{tmp_path}/b?size={size}"}
    found = tiercheck.findings(environ, lambda name: True)
    assert [one.level for one in found] == [level, level]
    assert f"free in {tmp_path}" in found[0].text
    assert found[1].text.startswith("disk2: ")


def test_what_the_server_would_refuse(tmp_path: Path) -> None:
    environ = {"KVKEEP_L2": f"valkey://h:1?credentials={tmp_path}/none"}
    [found] = tiercheck.findings(environ, lambda name: True)
    assert found.level is Level.ERROR
    assert "No such file" in found.text


def test_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    environ = {"KVKEEP_L2": f"disk:{tmp_path}/not/yet?size=16M"}
    [found] = tiercheck.findings(environ, lambda name: True)
    assert found.level is Level.ERROR
    assert found.text.endswith(f"{tmp_path}/not is not there")
