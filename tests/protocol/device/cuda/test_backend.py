import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.device.cuda.backend import kind_of
from protocol.device.cuda.driver import PointerFacts
from protocol.device.interface import MemoryKind
from tests.protocol.device.cuda import pretended

NAMES = [
    node.name
    for file in ("scenarios.py", "copyscenarios.py")
    for node in ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """Of each scenario why it failed."""
    run = pretended.run("tests.protocol.device.cuda.scenarios")
    assert run.returncode == 0, run.stderr
    found: dict[str, str | None] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_on_a_pretended_driver(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


def test_a_scenario_can_fail_and_all_are_tests(outcomes: dict[str, str | None]) -> None:
    assert "has devices" in (outcomes.pop("_broken") or "")
    assert set(outcomes) == set(NAMES)


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
    assert "cudaError" not in said[0] or "cuda-bindings" in said[0], "no code that nobody gave"
