"""Each package names a foreign sibling's path and refuses, however it was installed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol import siblings

PAIRS = [
    (ours, other) for ours in siblings.PACKAGES for other in siblings.PACKAGES if ours != other
]


def plant(folder: Path, name: str, source: str = "X = 1\n") -> Path:
    """Write a package of that name that has nothing to do with kvkeep.

    Its import must never happen: it leaves a file behind that the tests look for.
    """
    package = folder / name
    package.mkdir(parents=True)
    tell = f"open({str(folder / 'imported')!r}, 'w').close()\n"
    (package / "__init__.py").write_text(tell + source)
    return package / "__init__.py"


def import_from(statement: str, *path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one import in a fresh interpreter whose ``sys.path`` begins with ``path``."""
    code = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}; {statement}"
    return subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        check=False,
    )


def load_ours(name: str, root: Path) -> str:
    """Import code that loads kvkeep's package ``name`` although another one may come first."""
    return (
        "import importlib.util as u; "
        f"s = u.spec_from_file_location({name!r}, {str(root / name / '__init__.py')!r}, "
        f"submodule_search_locations=[{str(root / name)!r}]); "
        f"m = u.module_from_spec(s); sys.modules[{name!r}] = m; s.loader.exec_module(m)"
    )


@pytest.mark.parametrize(("ours", "other"), PAIRS)
def test_foreign_sibling_earlier_on_the_path_is_named(
    ours: str, other: str, root: Path, tmp_path: Path
) -> None:
    foreign = plant(tmp_path, other)
    result = import_from(f"import {ours}", tmp_path, root, cwd=tmp_path)
    assert result.returncode == 1
    assert "ImportError" in result.stderr
    assert str(foreign) in result.stderr
    assert str(root / other) in result.stderr
    assert not (tmp_path / "imported").exists(), "the foreign package was imported by the check"


@pytest.mark.parametrize(("ours", "other"), PAIRS)
def test_foreign_sibling_already_loaded_is_named(
    ours: str, other: str, root: Path, tmp_path: Path
) -> None:
    foreign = plant(tmp_path, other)
    result = import_from(f"import {other}; {load_ours(ours, root)}", tmp_path, root, cwd=tmp_path)
    assert result.returncode == 1
    assert str(foreign) in result.stderr


@pytest.mark.parametrize("name", siblings.PACKAGES)
def test_foreign_package_unpacked_over_ours_is_named(name: str, root: Path, tmp_path: Path) -> None:
    for package in siblings.PACKAGES:
        (tmp_path / package).mkdir()
        text = (root / package / "__init__.py").read_text()
        (tmp_path / package / "__init__.py").write_text(text)
    (tmp_path / "protocol" / "siblings.py").write_text((root / "protocol/siblings.py").read_text())
    ours = next(p for p in siblings.PACKAGES if p != name)
    before = import_from(f"import {ours}", tmp_path, cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    (tmp_path / name / "__init__.py").write_text("X = 1\n")
    after = import_from(f"import {ours}", tmp_path, cwd=tmp_path)
    assert after.returncode == 1
    assert str(tmp_path / name / "__init__.py") in after.stderr


def test_second_kvkeep_is_not_mixed_with_the_first(root: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text((root / "server/__init__.py").read_text())
    result = import_from("import adapter", tmp_path, root, cwd=tmp_path)
    assert result.returncode == 1
    assert str(tmp_path / "server") in result.stderr


def test_folder_without_init_does_not_hide_ours(root: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    result = import_from("import adapter, protocol, server", tmp_path, root, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_folder_that_python_would_take_for_a_sibling_is_named(tmp_path: Path, root: Path) -> None:
    (tmp_path / "ours" / "protocol").mkdir(parents=True)
    for file in ("__init__.py", "siblings.py"):
        text = (root / "protocol" / file).read_text()
        (tmp_path / "ours" / "protocol" / file).write_text(text)
    (tmp_path / "elsewhere" / "adapter").mkdir(parents=True)
    path = (tmp_path / "elsewhere", tmp_path / "ours")
    result = import_from("import protocol", *path, cwd=tmp_path)
    assert result.returncode == 1
    assert str(tmp_path / "elsewhere" / "adapter") in result.stderr


def test_checkout_reached_through_a_link_is_ours(root: Path, tmp_path: Path) -> None:
    for package in siblings.PACKAGES:
        (tmp_path / package).symlink_to(root / package)
    result = import_from("import adapter, protocol, server", tmp_path, root, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_hand_made_module_without_spec_is_refused(root: Path, tmp_path: Path) -> None:
    made = "import types; sys.modules['server'] = types.ModuleType('server')"
    result = import_from(f"{made}; import protocol", root, cwd=tmp_path)
    assert result.returncode == 1
    assert "'server'" in result.stderr
    assert "sys.modules" in result.stderr


def test_incomplete_install_says_what_is_missing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text((root / "server/__init__.py").read_text())
    result = import_from("import server", tmp_path, cwd=tmp_path)
    assert result.returncode == 1
    assert "incomplete" in result.stderr
    assert f"{tmp_path}/server/../protocol/siblings.py" in result.stderr


def test_check_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    code = "import protocol; print([m for m in sys.modules if 'siblings' in m or m == 'server'])"
    result = import_from(code, root, cwd=tmp_path)
    assert result.stdout.strip() == "[]", result.stderr


def test_check_is_cheap(root: Path) -> None:
    fastest_s = min(_timed_check_s(root) for _ in range(20))
    assert fastest_s < 0.002


def _timed_check_s(root: Path) -> float:
    started_s = time.perf_counter()
    siblings.check(str(root / "server" / "__init__.py"))
    return time.perf_counter() - started_s
