"""What each preset leads to, in environments laid out on disk; nothing of them is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from server.cli import presetcheck
from server.cli.findings import Finding, Level
from server.cli.presetcheck import PRESETS, Surroundings, findings, version_of
from tests.repository import tree

OURS = tree.ROOT / "deploy" / "lmcache_preset" / "src"


def package(root: Path, *parts: str, text: str = "raise RuntimeError('imported')\n") -> Path:
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(text)
    return folder


def look(*path: Path, **versions: str) -> list[Finding]:
    by_name = {name.replace("_", "-"): version for name, version in versions.items()}
    by_name["tensorrt_llm"] = by_name.pop("tensorrt-llm", "")
    return findings(Surroundings([str(one) for one in path], lambda n: by_name.get(n) or None))


def test_without_anything_presets_lead_nowhere(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert [one.level for one in found] == [Level.NOTE, Level.NOTE]
    assert [one.text.split(":")[0] for one in found] == list(PRESETS)
    assert all("leads nowhere" in one.text for one in found)
    assert all("deploy/lmcache_preset" in one.advice for one in found)


def test_kvkeeps_preset_is_named(tmp_path: Path) -> None:
    found = look(tmp_path, OURS, kvkeep_lmcache_preset="0.1.0")
    assert [one.level for one in found] == [Level.OK, Level.OK]
    assert all("leads to kvkeep (kvkeep-lmcache-preset 0.1.0)" in one.text for one in found)


def test_lmcache_itself_is_named(tmp_path: Path) -> None:
    package(tmp_path, "lmcache")
    found = look(tmp_path, lmcache="0.5.6")
    assert [one.level for one in found] == [Level.NOTE, Level.NOTE]
    assert all("leads to LMCache 0.5.6" in one.text for one in found)
    assert all("adapter.connector" in one.advice for one in found)


def test_both_where_lmcache_comes_first_is_a_warning(tmp_path: Path) -> None:
    package(tmp_path, "lmcache")
    found = look(tmp_path, OURS, lmcache="0.5.6", kvkeep_lmcache_preset="0.1.0")
    assert [one.level for one in found] == [Level.WARNING, Level.WARNING]
    assert all("is not reached" in one.advice for one in found)


def test_both_where_the_preset_comes_first_is_an_error(tmp_path: Path) -> None:
    package(tmp_path, "lmcache")
    found = look(OURS, tmp_path, lmcache="0.5.6", kvkeep_lmcache_preset="0.1.0")
    assert [one.level for one in found] == [Level.ERROR, Level.ERROR]


def test_a_preset_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    package(tmp_path, "lmcache", text=presetcheck.OUR_MARKER)
    [first, _] = look(tmp_path)
    assert first.level is Level.ERROR
    assert "tensorrt_adapter.py is missing" in first.text


@pytest.mark.parametrize(
    ("registry", "unknown"),
    [
        ('X = {"lmcache": Y(), "lmcache-mp": Y(), "kvbm": Y()}', []),
        ('X = {"lmcache": Y(), "kvbm": Y()}', ["lmcache-mp"]),
    ],
)
def test_the_hosts_registry_is_asked(tmp_path: Path, registry: str, unknown: list[str]) -> None:
    package(tmp_path, "tensorrt_llm")
    folder = package(tmp_path, "tensorrt_llm", "_torch", "pyexecutor", "connectors")
    (folder / "registry.py").write_text(registry)
    found = look(tmp_path, OURS, kvkeep_lmcache_preset="0.1.0")
    assert [one.text.split(":")[0] for one in found if "not known" in one.text] == unknown


def test_a_host_without_presets_is_said(tmp_path: Path) -> None:
    package(tmp_path, "tensorrt_llm")
    found = look(tmp_path, tensorrt_llm="1.2.1")
    assert "TensorRT-LLM 1.2.1" in found[0].text
    assert "has no presets" in found[0].text
    assert len(found) == 3


def test_nothing_is_imported() -> None:
    before = {"lmcache", "tensorrt_llm"} & set(sys.modules)
    findings()
    assert {"lmcache", "tensorrt_llm"} & set(sys.modules) == before


def test_versions_of_distributions() -> None:
    assert version_of("pytest") is not None
    assert version_of("kvkeep-no-such-distribution") is None


def test_the_modules_are_the_ones_that_the_preset_has() -> None:
    for module, *classes in PRESETS.values():
        text = (OURS / module.replace(".", "/")).with_suffix(".py").read_text()
        assert all(f"class {name}(" in text for name in classes)
    assert presetcheck.OUR_MARKER in (OURS / "lmcache" / "__init__.py").read_text()
