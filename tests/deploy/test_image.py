"""Image and compose file by a real Docker, on a machine in namespaces.

Not tried: Docker's own base of the image, GPUs, engines with TensorRT-LLM, and limits above what
this machine admits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import Machine
from tests.deploy.test_machine import wheel

__all__ = ["wheel"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]
SOCKET = "/run/kvkeep/kvkeep.sock"
SERVER, HOLD = "kvkeep_kvkeep_1", "kvkeep_hold_1"
COMPOSE = (
    "KVKEEP_L1_SIZE=64M KVKEEP_ARENA_LIMIT=1g docker-compose -p kvkeep -f compose.yaml -f o.yaml"
)
# Debian's docker-compose knows no names of projects; and no more memory is locked than a sandbox's
# root may give.
PREPARE = """
systemctl start docker
docker load --quiet --input /var/lib/containers/kvkeep.tar
mkdir -p /compose/deploy
cp -r /repository/deploy/container /repository/deploy/tensorrt_llm /compose/deploy
cd /compose/deploy/container
sed -i /^name:/d compose.yaml
echo 'services: {kvkeep: {ulimits: {memlock: 65536, nofile: 4096}}}' >o.yaml
"""
COUNT = 8


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with Docker, which has brought up what compose.yaml says, but no engines."""
    folder = tmp_path_factory.mktemp("image")
    with Machine(folder, wheel, "sh /repository/tests/deploy/image.sh") as booted:
        booted.boot()
        booted.good("sh", "-euc", PREPARE)
        compose(booted, "up -d --no-build kvkeep")
        wait_until_ready(booted)
        yield booted


def compose(machine: Machine, arguments: str) -> str:
    return machine.good("sh", "-euc", f"cd /compose/deploy/container; {COMPOSE} {arguments}")


def state(machine: Machine) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        machine.good("docker", "inspect", "--format={{json .State}}", SERVER)
    )
    return found


def wait_until_ready(machine: Machine) -> None:
    """It answers what the image asks for its health."""
    end_s = time.monotonic() + 60
    while machine.run("docker", "exec", SERVER, "kvkeep", "stats").returncode != 0:
        assert time.monotonic() < end_s, machine.run("docker", "logs", SERVER).stderr
        time.sleep(0.3)


def engine(machine: Machine, what: str, *group: str) -> str:
    """A container of another user's, with what compose.yaml shares with engines."""
    shared = ("--volume=kvkeep_kvkeep-run:/run/kvkeep:ro", "--volume=/repository:/repository:ro")
    how = ("--rm", f"--pid=container:{HOLD}", "--user=4321:4321", "--network=none", *group)
    visit = ("--entrypoint=python", "kvkeep", "-m", "tests.deploy.visit")
    done = machine.run(
        *("docker", "run", *how, *shared, "--workdir=/repository", *visit),
        *(what, SOCKET, "image", str(COUNT)),
    )
    return done.stdout.strip() or done.stderr.strip()


MEMBER = "--group-add=10001"


def test_the_server_has_nothing_to_write_on_and_nothing_to_build_with(machine: Machine) -> None:
    asked = (
        "import json, os, shutil; from pathlib import Path;"
        "status = Path('/proc/self/status').read_text().splitlines();"
        "print(json.dumps([os.getuid(), os.getgid(), os.statvfs('/').f_flag & os.ST_RDONLY,"
        " [name for name in ('pip', 'pip3', 'gcc') if shutil.which(name)],"
        " [line.split()[1] for line in status if line[:6] in ('CapEff', 'CapBnd', 'NoNewP')]]))"
    )
    told = json.loads(machine.good("docker", "exec", SERVER, "python", "-c", asked))
    nothing = "0000000000000000"
    assert told == [10001, 10001, 1, [], [nothing, nothing, "1"]]


def test_its_pages_are_on_the_machines_loopback(machine: Machine) -> None:
    page = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/healthz').status)"
    end_s = time.monotonic() + 60
    while "200" not in (done := machine.run("python3", "-c", page)).stdout:
        assert time.monotonic() < end_s, done.stderr
        time.sleep(0.3)


def test_engines_of_the_group_use_it_and_no_others(machine: Machine) -> None:
    assert engine(machine, "save", MEMBER) == str(COUNT)
    assert engine(machine, "look", MEMBER) == str(COUNT)
    assert "Permission denied" in engine(machine, "look")


def test_the_cache_is_there_after_a_restart_and_with_a_new_container(machine: Machine) -> None:
    assert engine(machine, "save", MEMBER) == str(COUNT)
    compose(machine, "restart kvkeep")
    wait_until_ready(machine)
    assert engine(machine, "look", MEMBER) == str(COUNT)
    compose(machine, "stop kvkeep")
    assert state(machine)["ExitCode"] == 0
    compose(machine, "up -d --no-build --force-recreate --no-deps kvkeep")
    wait_until_ready(machine)
    assert engine(machine, "look", MEMBER) == str(COUNT)


def test_a_killed_server_is_started_again_with_its_cache(machine: Machine) -> None:
    """By Docker; and what shares the namespace of processes goes on."""
    assert engine(machine, "save", MEMBER) == str(COUNT)
    held, old = machine.good("docker", "inspect", "--format={{.State.Pid}}", HOLD), state(machine)
    machine.good("kill", "-KILL", str(old["Pid"]))
    end_s = time.monotonic() + 60
    while (new := state(machine)) and (not new["Running"] or new["Pid"] == old["Pid"]):
        assert time.monotonic() < end_s
        time.sleep(0.2)
    wait_until_ready(machine)
    assert engine(machine, "look", MEMBER) == str(COUNT)
    assert machine.good("docker", "inspect", "--format={{.State.Pid}}", HOLD) == held


def test_docker_finds_it_healthy(machine: Machine) -> None:
    """Asked for every 30 s."""
    end_s = time.monotonic() + 100
    while (health := state(machine)["Health"]) and '"healthy"' not in json.dumps(health):
        assert time.monotonic() < end_s, health
        time.sleep(1)


def test_to_take_it_down_empties_the_cache(machine: Machine) -> None:
    assert engine(machine, "save", MEMBER) == str(COUNT)
    compose(machine, "down")
    compose(machine, "up -d --no-build kvkeep")
    wait_until_ready(machine)
    assert engine(machine, "look", MEMBER) == "0"
