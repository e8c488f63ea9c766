"""Image and compose file under a real linter and compose's schema. Docker is in ``test_image``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from server import config
from server.config import KEYS, variable
from tests.deploy.linters import complaints
from tests.repository import tree

CONTAINER = tree.ROOT / "deploy" / "container"
DOCKERFILE = CONTAINER / "Dockerfile"
COMPOSE = CONTAINER / "compose.yaml"


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(COMPOSE.read_text())
    assert isinstance(found, dict)
    return found


def test_the_image_passes_its_linter() -> None:
    assert complaints("hadolint", "--failure-threshold", "style", DOCKERFILE) == ""


def test_its_linter_is_awake(tmp_path: Path) -> None:
    worse = tmp_path / "Dockerfile"
    worse.write_text(
        DOCKERFILE.read_text().replace("FROM python:3.12-slim-bookworm", "FROM python")
    )
    assert "DL3006" in complaints("hadolint", "--failure-threshold", "style", worse)


def test_the_compose_file_has_its_schema() -> None:
    arguments = ("--builtin-schema", "vendor.compose-spec")
    assert complaints("check-jsonschema", *arguments, COMPOSE) == ""


def test_its_schema_is_awake(tmp_path: Path) -> None:
    worse = tmp_path / "compose.yaml"
    worse.write_text(COMPOSE.read_text().replace("read_only:", "readonly:"))
    arguments = ("--builtin-schema", "vendor.compose-spec")
    assert "readonly" in complaints("check-jsonschema", *arguments, worse)


def test_nothing_of_the_image_runs_as_root() -> None:
    text = DOCKERFILE.read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001:10001$", last, re.M)
    assert "ENTRYPOINT" in last[last.index("USER ") :]
    assert set(re.findall(r"\b(KVKEEP_\w+)=", text)) <= {variable(key) for key in KEYS}


def test_every_base_is_pinned_by_a_tag() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.M)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", base) for base in bases)


def test_the_image_gets_what_it_copies() -> None:
    """What is copied exists, and the ignore file lets it through."""
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE.read_text(), re.M)
    names = [name for line in copied for name in line.split()]
    admitted = {
        line[1:]
        for line in (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(names) == admitted
    assert all((tree.ROOT / name).exists() for name in names)


def test_two_engines_share_sockets_and_processes_and_no_more() -> None:
    services = compose()["services"]
    engines = {name: one for name, one in services.items() if name.startswith("engine")}
    assert len(engines) == 2
    for one in (*engines.values(), services["kvkeep"]):
        # A namespace of the server's own would end the engines with it.
        assert one["pid"] == "service:hold"
        assert "ipc" not in one
        assert not one.get("privileged")
    for one in engines.values():
        assert "kvkeep-run:/run/kvkeep:ro" in one["volumes"]
        assert not any("kvkeep-arena" in volume for volume in one["volumes"])
        assert one["group_add"] == ["10001"]
    arena = [
        name for name, one in services.items() if "kvkeep-arena:/run/kvkeep_arena" in one["volumes"]
    ]
    assert arena == ["hold", "kvkeep"]


def test_the_server_may_do_nothing_beside_its_work() -> None:
    for name in ("hold", "kvkeep"):
        service = compose()["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
    environ = compose()["services"]["kvkeep"]["environment"]
    assert set(environ) <= {variable(key) for key in KEYS}
    config.read({}, {key: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", environ[key]) for key in environ})
