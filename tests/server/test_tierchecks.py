"""Settings of tiers that can never work are refused at the start, in one line."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.tierchecks import check
from server.tierspec import parse, parse_all
from tests.wire.process import ROOT


def refused(url: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check([parse(url)])
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_may_work_is_let_through(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("password=x")
    held.chmod(0o600)
    check(
        parse_all(
            [
                "disk:/nowhere/yet?size=1G",
                "s3://bucket",
                "s3://second?endpoint=http://127.0.0.1:9000",
                "s3://third?endpoint=http://store.example.org&insecure=yes",
                f"valkey://h:1?tls=yes&ca={held}&credentials={held}",
            ]
        )
    )


def test_in_the_clear_to_another_machine() -> None:
    told = refused("s3://bucket?endpoint=http://store.example.org:9000")
    assert "endpoint=http://store.example.org:9000: " in told
    assert told.endswith("expected https://, or insecure=yes")


def test_files_that_are_not_there_or_not_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "held"
    assert "tls=yes" in refused(f"valkey://h:1?ca={path}")
    assert refused(f"valkey://h:1?tls=yes&ca={path}").endswith(": No such file or directory")
    assert "No such file" in refused(f"s3://bucket?credentials={path}")
    path.write_text("password=x")
    path.chmod(0o640)
    assert "(mode 0640); expected 0600" in refused(f"valkey://h:1?credentials={path}")
    assert "no regular file" in refused(f"valkey://h:1?credentials={tmp_path}")


def test_keys_are_ours_alone_and_the_package_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    url = f"disk:/nowhere/yet?size=1G&keys={path}"
    assert f"keys={path}: No such file" in refused(url)
    path.write_text("a = x")  # what is in it is the porter's
    path.chmod(0o640)
    assert "expected 0600" in refused(url)
    path.chmod(0o400)
    check([parse(url)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'cryptography>=" in refused(url)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid():
        assert "neither this user's nor root's" in refused(url)


def test_the_server_does_not_start_with_one(short_dir: Path) -> None:
    url = f"valkey://h:1?credentials={short_dir}/none"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "server", "launch"),
            *("--endpoint", f"ipc://{short_dir}/s", "--l2", url),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert f"l2: valkey: credentials={short_dir}/none: No such file" in done.stderr
