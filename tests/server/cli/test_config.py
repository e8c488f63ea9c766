"""``kvkeep config``: what holds, where it comes from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from server.cli import cli
from server.schema import SETTINGS


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments], env=environ)


def settings(*arguments: str, **environ: str) -> dict[str, dict[str, Any]]:
    result = run("--json", *arguments, **environ)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["settings"]
    assert isinstance(found, dict)
    return found


def test_every_setting_is_shown_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "kvkeep.conf"
    path.write_text("log-level = error\nl2 = disk:/a?size=1G disk:/b?size=1G\n")
    found = settings(
        "--l1-size", "1.5G", KVKEEP_CONFIG=str(path), KVKEEP_PROMOTE_DEADLINE="2s", KVKEEP_GROUP=""
    )
    assert list(found) == list(SETTINGS)
    told = {key: (one["value"], one["source"]) for key, one in found.items()}
    assert told["l1-size"] == ("1.5 GiB", "command line")
    assert told["log-level"] == ("ERROR", str(path))
    assert told["l2"] == ("disk:/a?size=1G disk:/b?size=1G", str(path))
    assert told["promote-deadline"] == ("2 s", "KVKEEP_PROMOTE_DEADLINE")
    assert told["config"] == (str(path), "KVKEEP_CONFIG")
    assert told["extent-size"] == (SETTINGS["extent-size"].default, "default")
    assert told["group"] == ("this user alone", "default")  # empty is as good as not given
    assert told["endpoint"][0].startswith("ipc:///")
    assert told["arena-dir"][0].startswith("/dev/shm/kvkeep-")
    assert found["l1-size"]["variable"] == "KVKEEP_L1_SIZE"


def test_the_table_has_the_same() -> None:
    shown = run("--l2", "disk:/a?size=1G", "--l2", "s3://bucket")
    assert shown.exit_code == 0
    rows = {line.split()[0]: line for line in shown.output.splitlines()[2:]}
    assert list(rows) == list(SETTINGS)
    assert "disk:/a?size=1G s3://bucket" in rows["l2"]
    assert rows["l2"].endswith("command line")


def test_lmcaches_names_are_shown_as_what_they_become(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text("max_local_cpu_size: 5.0\nchunk_size: 256\n")
    shown = run("--json", "--port", "6000", LMCACHE_CONFIG_FILE=str(path))
    found = json.loads(shown.output)
    assert found["settings"]["endpoint"]["value"] == "tcp://127.0.0.1:6000"
    source = found["settings"]["l1-size"]["source"]
    assert source == f"max_local_cpu_size of {path} (LMCACHE_CONFIG_FILE)"
    assert len(found["notes"]) == 1


def test_what_launch_would_refuse_is_refused() -> None:
    for environ, said in (
        ({"KVKEEP_L1_SIZE": "x"}, "KVKEEP_L1_SIZE: l1-size='x'"),
        ({"KVKEEP_L1SIZE": "1G"}, "did you mean KVKEEP_L1_SIZE?"),
        ({"KVKEEP_CONFIG": "/no/such/file"}, "KVKEEP_CONFIG: config='/no/such/file'"),
    ):
        refused = run(**environ)
        assert refused.exit_code == 2
        assert said in refused.output
        assert refused.output.count("\n") == 1
