"""The measurement of the disk tier runs, and cleans up behind it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.benchmarks import bench_disk


@pytest.mark.parametrize("words", [["slab"], ["files", "--encrypt"]])
def test_each_way_is_measured_beside_fio(tmp_path: Path, words: list[str]) -> None:
    if shutil.which("fio") is None:
        assert os.environ.get("CI") != "true", "fio was not found: apt-get install fio"
        pytest.skip("fio was not found: apt-get install fio")
    words = ["--layout", *words, "--folder", str(tmp_path / "l2"), "--size", "32M"]
    words += ["--value", "256K", "--rounds", "2", "--threads", "2"]
    result = CliRunner().invoke(bench_disk.main, [*words, "--json", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out").read_text())
    assert document["is_encrypted"] == ("--encrypt" in words)
    assert len(document["put_to_fio"]) == len(document["get_to_fio"]) == 2
    assert min(document["median_gb_s"].values()) > 0
    assert not (tmp_path / "l2").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = CliRunner().invoke(bench_disk.main, ["--folder", str(tmp_path), "--size", "32M"])
    assert result.exit_code == 1
    assert (tmp_path / "mine").exists()


def test_what_a_run_that_was_killed_left_is_removed_first(tmp_path: Path) -> None:
    folder = tmp_path / "l2"
    with bench_disk.folder_of_a_run(folder):
        (folder / "segments").mkdir()
        (folder / "segments" / "0").write_text("x")
        (folder / "kvkeep.json").write_text("x")
        shutil.copytree(folder, tmp_path / "killed")
        result = CliRunner().invoke(bench_disk.main, ["--folder", str(folder), "--size", "32M"])
        assert result.exit_code == 1
        assert "another run uses" in result.output
    assert not folder.exists()
    with bench_disk.folder_of_a_run(tmp_path / "killed"):
        assert [path.name for path in (tmp_path / "killed").iterdir()] == [bench_disk.MARK]
    assert not (tmp_path / "killed").exists()


def test_sigterm_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), bench_disk.folder_of_a_run(tmp_path / "l2"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not (tmp_path / "l2").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
