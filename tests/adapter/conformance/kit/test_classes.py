"""What is no connector is said to be none, before any rule is played."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit.classes import ClassError, load
from tests.adapter.conformance.kit import foreign

pytestmark = pytest.mark.torch

NAMES = ("FolderScheduler", "FolderWorker")
SOURCE = """
from adapter.trtllm_api import KvCacheConnectorScheduler
table = {}
class Half(KvCacheConnectorScheduler):
    def request_finished(self, request, cache_block_ids): return False
class Proxy:
    def __init__(self, llm_args): self.inner = llm_args
    def __getattr__(self, name): return getattr(self.inner, name)
"""


def test_a_connector_is_loaded() -> None:
    classes = load(foreign.__name__, *NAMES)
    assert classes == (foreign.FolderScheduler, foreign.FolderWorker)


@pytest.mark.parametrize("name", ["", "../mine", ".mine", "mine.", "a:b", "..", "no.such.module"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ClassError, match="no such connector"):
        load(name, *NAMES)


@pytest.mark.parametrize(
    ("number", "source", "why"),
    [
        (0, "def (:", "SyntaxError"),
        (1, "raise RuntimeError('no GPU here')", "no GPU here"),
        (2, "import sys; sys.exit(3)", r"SystemExit\(3\)"),
    ],
)
def test_a_module_that_does_not_come_in_is_refused(
    number: int, source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"kit_outside_{number}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClassError, match=f"cannot be loaded: .*{why}"):
        load(f"kit_outside_{number}", *NAMES)


def test_ctrl_c_while_a_module_comes_in_is_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit_outside_interrupted.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load("kit_outside_interrupted", *NAMES)


@pytest.mark.parametrize(
    ("scheduler", "why"),
    [
        ("table", "table is no class, but of type dict"),
        ("Half", "Half cannot be constructed: it does not define build_connector_meta, get_num"),
        ("Missing", "no such connector.*Missing"),
        ("Path", "no scheduler's class: it has no build_connector_meta"),
        ("Proxy", "worker"),  # taken: what it hands on to is seen later
    ],
)
def test_a_class_that_is_no_connectors_is_refused(
    scheduler: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit_outside_classes.py").write_text(f"from pathlib import Path\n{SOURCE}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClassError, match=why):
        load("kit_outside_classes", scheduler, "Path")


def test_swapped_classes_are_seen() -> None:
    with pytest.raises(ClassError, match="FolderWorker is no scheduler's class"):
        load(foreign.__name__, *reversed(NAMES))
