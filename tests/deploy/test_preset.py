"""The preset as it is built: the files it installs, over what it refuses, that it leads to hits."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import __version__
from server.cli.presetcheck import CONNECTOR, PRESETS
from tests.repository import tree

SOURCE = tree.ROOT / "deploy" / "lmcache_preset"
FOLDER = "kvkeep_lmcache_preset"
CLEAN = {"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ.get("PATH", "")}


def build(tmp_path: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """``setup.py build`` of a copy, since it writes beside its sources."""
    copy = tmp_path / "source"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    return subprocess.run(
        [python, "setup.py", "-q", "build", "--build-base", str(tmp_path / "build")],
        cwd=copy,
        env={**CLEAN, "PYTHONPATH": os.pathsep.join(site.getsitepackages())},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as site-packages has it afterwards."""
    folder = tmp_path_factory.mktemp("preset")
    pytest.importorskip("setuptools", minversion="77")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder / "build" / "lib"


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code with a folder as one of its site-packages, and kvkeep from this tree."""
    start = f"import site, sys; sys.path.insert(0, {str(tree.ROOT)!r})"
    start = f"{start}; site.addsitedir({str(folder)!r})"
    return subprocess.run(
        [sys.executable, "-c", f"{start}\n{code}"],
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_file_of_it_could_overwrite_one_of_lmcaches(installed: Path) -> None:
    assert sorted(path.name for path in installed.iterdir()) == [FOLDER, f"{FOLDER}.pth"]
    assert (installed / f"{FOLDER}.pth").read_text() == f"{FOLDER}\n"  # a path, no code
    made = {str(path.relative_to(installed / FOLDER)) for path in installed.rglob("*.py")}
    assert made == {str(path.relative_to(SOURCE / "src")) for path in SOURCE.rglob("src/**/*.py")}


def test_all_files_speak_of_this_version() -> None:
    """One release of kvkeep has one preset, one image and one wheel."""
    text = (SOURCE / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in text
    assert f'"kvkeep=={__version__}"' in text
    found = set()
    for path in (*tree.files("deploy"), Path("docs/deployment.md")):
        found |= set(re.findall(r"(?<![\w-])kvkeep[-:](\d+\.\d+\.\d+)", tree.text(path)))
    assert found == {__version__}


def metadata_of_lmcache(folder: Path) -> None:
    info = folder / "lmcache-0.5.6.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: LMCache\nVersion: 0.5.6\n")


def test_it_is_not_built_where_lmcache_is_installed(tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60
    )
    [packages] = home.glob("lib/python*/site-packages")
    metadata_of_lmcache(packages)
    pytest.importorskip("setuptools", minversion="77")
    done = build(tmp_path, str(home / "bin" / "python"))
    assert done.returncode != 0
    [line] = done.stderr.strip().splitlines()
    assert "LMCache 0.5.6 is" in line
    assert CONNECTOR in line
    assert not (tmp_path / "build").exists()


def test_it_is_not_loaded_beside_lmcache(installed: Path, tmp_path: Path) -> None:
    metadata_of_lmcache(tmp_path)
    module = PRESETS["lmcache-mp"][0]
    done = python(installed, f"sys.path.append({str(tmp_path)!r})\nimport {module}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: kvkeep-lmcache-preset stands in for LMCache, and LMCache 0"
    )


def test_lmcache_itself_comes_first_and_is_untouched(installed: Path, tmp_path: Path) -> None:
    package = tmp_path / "lmcache"
    package.mkdir()
    (package / "__init__.py").write_text("WHOSE = 'LMCache'\n")
    code = f"sys.path.insert(1, {str(tmp_path)!r})\nimport lmcache\nprint(lmcache.WHOSE)"
    assert python(installed, code).stdout == "LMCache\n"


def test_a_strange_adapter_is_named(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text("")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nimport {PRESETS['lmcache'][0]}"
    last = python(installed, code).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: kvkeep-lmcache-preset needs kvkeep's package 'adapter'")
    assert str(tmp_path) in last


@pytest.fixture
def on_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The preset in this process, as site finds it there."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    site.addsitedir(str(installed))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "lmcache"]:
        del sys.modules[name]


@pytest.mark.torch
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.usefixtures("on_path")
def test_the_host_loads_what_a_preset_names_and_hits(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``lmcache`` starts a server of its own; ``lmcache-mp`` finds the node's."""
    pytest.importorskip("torch")
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_INPROC_L1_SIZE", "64M")
    from tests.adapter.enginerig import launched
    from tests.deploy.hit import WHOLE_BLOCKS, loaded_tokens

    if preset == "lmcache":
        assert loaded_tokens(preset, tmp_path) == WHOLE_BLOCKS
        return
    with launched() as server:
        assert loaded_tokens(preset, tmp_path, server.url) == WHOLE_BLOCKS


@pytest.mark.slow
@pytest.mark.torch
def test_wheels_in_an_environment_of_their_own(tmp_path: Path) -> None:
    """kvkeep and the preset as pip installs them, with the rest from this environment."""
    pytest.importorskip("torch")
    home, wheels = tmp_path / "venv", tmp_path / "wheels"
    for source in (tree.ROOT, SOURCE):
        copy = tmp_path / f"source-{source.name}"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(copy))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    python = str(home / "bin" / "python")
    pip("--python", python, "install", "--no-deps", "--no-index", *map(str, wheels.iterdir()))
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "rest.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for preset in PRESETS:
        done = subprocess.run(
            [python, "-I", str(tree.ROOT / "tests/deploy/hit.py"), preset, tmp_path, "inproc://"],
            cwd=tmp_path,
            env={**CLEAN, "TRTLLM_KVKEEP_INPROC_L1_SIZE": "64M"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout == "64\n", done.stderr
    pip("--python", python, "uninstall", "--yes", "kvkeep-lmcache-preset")
    assert not [path for path in packages.glob(f"{FOLDER}*") if path.is_file()]
    assert not list(packages.glob(f"{FOLDER}/**/*.py"))


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    subprocess.run(command, check=True, timeout=300)
