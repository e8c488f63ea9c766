"""The file map names each module where it is, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.repository import tree

ROOMS = (
    "protocol",
    "protocol/device",
    "protocol/device/cuda",
    "protocol/device/simulated",
    "protocol/tracing",
    "server",
    "server/cli",
    "server/core",
    "server/core/tiers",
    "server/shell",
    "server/copier",
    "server/porter",
    "server/tiers",
    "server/tiers/disk",
    "server/tiers/ledger",
    "server/web",
    "server/tracing",
    "server/bench",
    "server/simulate",
    "adapter",
)


def mapped(room: str) -> set[str]:
    """Modules that the map names in a room."""
    text = tree.text("docs/architecture.md")
    found = re.search(rf"^### `{room}`$(.*?)(?=^##|^`adapter/conf|\Z)", text, re.M | re.S)
    assert found is not None, f"the file map of docs/architecture.md has no heading for {room}"
    names = re.findall(r"`([a-z_]+)`", found[1])
    assert len(names) == len(set(names)), f"named twice in {room}"
    return set(names)


@pytest.mark.parametrize("room", ROOMS)
def test_the_file_map_is_the_tree(room: str) -> None:
    there = {
        path.stem for path in (tree.ROOT / room).glob("*.py") if not path.stem.startswith("__")
    }
    assert mapped(room) == there, "docs/architecture.md, File map: name each module in its row"


def test_no_room_is_left_out() -> None:
    rooms = {
        str(path.parent)
        for path in tree.files(*tree.PACKAGES, suffix=".py")
        if Path("adapter/conformance") not in (path.parent, *path.parents)
    }
    assert rooms == set(ROOMS)
