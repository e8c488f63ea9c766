"""Each import contract of pyproject.toml catches a breach planted for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import tree

pytest.importorskip("importlinter")

# Where the breach is planted, what it imports, and the contract that must notice.
BREACHES = [
    ("server/core/planted.py", "import adapter.pages", "server and adapter stand on protocol"),
    ("adapter/planted.py", "import server.core", "server and adapter stand on protocol"),
    ("protocol/planted.py", "import server.core", "server and adapter stand on protocol"),
    ("server/core/planted.py", "import server.app", "inside the server"),
    ("server/core/planted.py", "import time", "core and protocol do no input or output"),
    ("protocol/planted.py", "import zmq", "core and protocol do no input or output"),
    ("server/planted.py", "def f() -> None:\n    import torch", "torch only"),
    ("protocol/device/host.py", "import torch", "torch only"),
    ("server/core/planted.py", "import protocol.device.interface", "the device seam is for"),
    ("protocol/planted.py", "import protocol.device.host", "the device seam is for"),
    ("server/shell/planted.py", "import protocol.tracing.export", "the trace seam is for"),
    ("server/tracing/planted.py", "import opentelemetry", "OpenTelemetry only behind"),
    # By a module that may: the direct import stands in the copier.
    ("server/shell/planted.py", "import server.copier.gpu", "the server's own process reaches no"),
    ("server/web/planted.py", "import server.core.index", "the pages know the server as any"),
    ("adapter/saver.py", "import cupy", "cupy and CUDA's bindings only"),
    ("protocol/device/host.py", "import cuda.bindings.runtime", "cupy and CUDA's bindings only"),
    ("server/copier/host.py", "def f() -> None:\n    import cupy", "cupy and CUDA's bindings only"),
    ("adapter/planted.py", "import tensorrt_llm", "TensorRT-LLM only behind"),
    ("adapter/saver.py", "import adapter.conformance", "the connector knows nothing"),
    ("adapter/planted.py", "", "the connector knows nothing"),  # not listed in the contract
    ("adapter/planted.py", "import pickle", "pickle only in the conformance host"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that a breach never stands in the tree others work in."""
    target = tmp_path_factory.mktemp("tree")
    for path in [*tree.files(*tree.PACKAGES, suffix=".py"), Path("pyproject.toml")]:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree.ROOT / path, target / path)
    (target / "server" / "app").mkdir(exist_ok=True)
    (target / "server" / "app" / "__init__.py").touch()
    return target


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},  # a contract's name and verdict on one line
    )


@pytest.mark.parametrize(("path", "source", "contract"), BREACHES)
def test_breach_is_caught(copy: Path, path: str, source: str, contract: str) -> None:
    planted = copy / path
    before = planted.read_text(encoding="utf-8") if planted.exists() else None
    planted.write_text(source + "\n", encoding="utf-8")
    try:
        result = lint(copy)
    finally:
        if before is None:
            planted.unlink()
        else:
            planted.write_text(before, encoding="utf-8")
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(line.startswith(contract) for line in broken), result.stdout


def test_contracts_hold_without_a_breach(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr
