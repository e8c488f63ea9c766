import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.device.cuda.backend import kind_of
from protocol.device.cuda.driver import PointerFacts
from protocol.device.interface import MemoryKind
from tests.protocol.device.cuda import pretended

SCENARIOS = Path(__file__).with_name("scenarios.py")
HELPERS = ("log", "bound", "bytes_at")
NAMES = [
    node.name
    for node in ast.parse(SCENARIOS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and node.name not in HELPERS
]


@pytest.mark.parametrize("name", NAMES)
def test_on_a_pretended_driver(name: str) -> None:
    run = pretended.run("tests.protocol.device.cuda.scenarios", name)
    assert run.returncode == 0, run.stderr


def test_a_scenario_can_fail() -> None:
    run = pretended.run("tests.protocol.device.cuda.scenarios", "no such scenario")
    assert run.returncode != 0


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (PointerFacts(0, False, 0, 0, 0, False), None),
        (PointerFacts(1, False, 0, 4096, 1, False), MemoryKind.HOST),
        (PointerFacts(1, True, 0, 4096, 1, False), MemoryKind.MANAGED),
        (PointerFacts(2, True, 0, 4096, 1, True), MemoryKind.MANAGED),
        (PointerFacts(2, False, 0, 4096, 1, True), MemoryKind.DEVICE),
        (PointerFacts(2, False, 0, 4096, 1, False), MemoryKind.VIRTUAL),
        (PointerFacts(3, False, 0, 4096, 1, True), None),
    ],
)
def test_kinds_of_memory(facts: PointerFacts, kind: MemoryKind | None) -> None:
    assert kind_of(facts) is kind


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_a_driver_there_is_one_clear_error() -> None:
    code = (
        "from protocol.device.backends import visible_devices, device_of\n"
        "from protocol.device.interface import DeviceError\n"
        "for ask in (visible_devices, lambda: device_of('cuda', 4096)):\n"
        "    try: ask()\n"
        "    except DeviceError as error: print(error)\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("KVKEEP")
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = run.stdout.splitlines()
    assert len(said) == 2
    assert all(line.startswith("CUDA: ") for line in said), said
    assert said[0] == said[1]
