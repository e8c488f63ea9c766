"""The manifests against Kubernetes' schemas, and what they may not ask for. None was applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from server import config
from server.cli import cli, reaching
from server.config import KEYS, variable
from server.sizes import parse_size
from server.web.health import CHECKS
from server.web.watch import LIMIT_S
from tests.deploy.linters import complaints
from tests.repository import tree

MANIFESTS = tree.ROOT / "deploy" / "kubernetes"
NAMES = ("daemonset.yaml", "engine.yaml")
VERSIONS = ("1.29", "1.34")


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def size(text: str) -> int:
    return parse_size("size", text.removesuffix("i"))


def pod(name: str) -> dict[str, Any]:
    """The specification of a manifest's pods."""
    found = documents(name)[-1]["spec"]
    return dict(found["template"]["spec"] if "template" in found else found)


def containers(name: str) -> Iterator[dict[str, Any]]:
    yield from pod(name).get("initContainers", [])
    yield from pod(name)["containers"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_have_their_schema(name: str, version: str) -> None:
    arguments = ("--strict", "-k", version)
    assert complaints("kubernetes-validate", *arguments, MANIFESTS / name) == ""


def test_the_schemas_are_awake(tmp_path: Path) -> None:
    worse = tmp_path / "engine.yaml"
    worse.write_text((MANIFESTS / "engine.yaml").read_text().replace("readOnly:", "readonly:"))
    arguments = ("--strict", "-k", VERSIONS[-1])
    assert "readonly" in complaints("kubernetes-validate", *arguments, worse)


def test_all_yaml_passes_its_linter() -> None:
    rules = tree.ROOT / "deploy" / ".yamllint.yaml"
    files = [tree.ROOT / path for path in tree.files("deploy", suffix=".yaml")]
    assert len(files) >= 6
    assert complaints("yamllint", "--strict", "-c", rules, *files) == ""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_node_is_taken_but_a_folder(name: str) -> None:
    spec = pod(name)
    assert {"hostIPC", "hostNetwork", "hostPID", "shareProcessNamespace"}.isdisjoint(spec)
    paths = [one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one]
    assert paths == ["/run/kvkeep"]
    for one in containers(name):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in context
        assert "memory" in one["resources"]["limits"]


def test_only_the_folder_is_made_as_root() -> None:
    first, server = containers("daemonset.yaml")
    assert first["securityContext"]["runAsUser"] == 0
    assert first["securityContext"]["capabilities"]["add"] == ["CHOWN", "FOWNER"]
    assert server["securityContext"]["runAsUser"] == 10001
    assert server["securityContext"]["runAsNonRoot"] is True
    assert "add" not in server["securityContext"]["capabilities"]


def test_the_arena_fits_into_volume_and_limit() -> None:
    [_, server] = containers("daemonset.yaml")
    settings = {one["name"]: one["value"] for one in server["env"]}
    assert set(settings) <= {variable(key) for key in KEYS}
    config.read({}, settings)
    arena = size(settings["KVKEEP_L1_SIZE"])
    [volume] = [one for one in pod("daemonset.yaml")["volumes"] if one["name"] == "arena"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert arena < size(volume["emptyDir"]["sizeLimit"])
    assert arena < size(server["resources"]["limits"]["memory"])
    [mount] = [one for one in server["volumeMounts"] if one["name"] == "arena"]
    assert settings["KVKEEP_ARENA_DIR"].startswith(mount["mountPath"] + "/")


def test_nothing_restarts_the_server_but_its_own_loop() -> None:
    """Nor does it go over HTTP, where slow readers can take every place."""
    [_, server] = containers("daemonset.yaml")
    for probe in ("startupProbe", "livenessProbe"):
        program, *arguments = server[probe]["exec"]["command"]
        assert program == "kvkeep"
        # One that finds no server fails; a slip in it would fail with 2, or 0.
        shown = CliRunner().invoke(cli, arguments, env={"KVKEEP_ENDPOINT": "ipc:///nowhere/x"})
        assert (shown.exit_code, "no server listens there" in shown.output) == (1, True)
        assert server[probe]["timeoutSeconds"] > reaching.LIMIT_S


def test_a_tier_that_is_down_makes_no_pod_unready() -> None:
    [_, server] = containers("daemonset.yaml")
    path, _, query = server["readinessProbe"]["httpGet"]["path"].partition("?")
    assert path == "/readyz"
    assert parse_qs(query) == {"exclude": ["tiers"]}
    assert "tiers" in CHECKS
    assert server["readinessProbe"]["timeoutSeconds"] > LIMIT_S


def test_engines_reach_the_servers_socket() -> None:
    [_, server] = containers("daemonset.yaml")
    [engine] = containers("engine.yaml")
    url = {one["name"]: one["value"] for one in engine["env"]}["TRTLLM_KVKEEP_SERVER_URL"]
    assert url == {one["name"]: one["value"] for one in server["env"]}["KVKEEP_ENDPOINT"]
    folder = url.removeprefix("ipc://").rpartition("/")[0]
    for one in (server, engine):
        assert folder in [mount["mountPath"] for mount in one["volumeMounts"]]
    group = server["securityContext"]["runAsGroup"]
    assert pod("engine.yaml")["securityContext"]["supplementalGroups"] == [group]
