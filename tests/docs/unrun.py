"""What can be looked at of a command that cannot run here: names, options, files, syntax.

Knows pyproject, the command line of ours, and the options of others that the pages use. Starts
nothing but parsers. Runs in the pytest process.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from click.testing import CliRunner

from server.cli import COMMANDS, cli
from tests.repository import tree

#: Options of ``docker run`` with a value, and without.
DOCKER_VALUED: Final = {
    *("--name", "--gpus", "--pid", "--user", "--shm-size", "--ulimit", "-v", "-e", "-w"),
}
DOCKER_BARE: Final = {"-d", "--rm"}
#: Options of TensorRT-LLM's server: which, and where the value must be found.
TRTLLM: Final = {"--extra_llm_api_options": "", "--kv-connector": "deploy/tensorrt_llm/README.md"}


def ours(words: Sequence[str]) -> None:
    """One of the program's commands, with options that it has."""
    assert words[0] in COMMANDS, words
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, (words, done.output)


def pip(words: Sequence[str]) -> None:
    """It installs a wheel of this version, extras that there are, packages that the tests use."""
    assert list(words[:2]) == ["pip", "install"], words
    assert words[2:], words
    project = tree.text("pyproject.toml")
    version = re.search(r'^version = "(.+)"$', project, re.M)
    assert version is not None
    extras = project[project.index("[project.optional-dependencies]") :].partition("\n[")[0]
    for word in words[2:]:
        name, _, extra = word.rstrip("]").partition("[")
        if name.endswith(".whl"):
            assert name == f"dist/kvkeep-{version[1]}-py3-none-any.whl", word
        elif name != "kvkeep":
            assert f'"{name}' in project, word
        assert not extra or re.search(rf"^{extra} = \[", extras, re.M), word


def docker(words: Sequence[str]) -> None:
    """``docker run`` with options from the list, an image, and a command of ours or none."""
    assert list(words[:2]) == ["docker", "run"], words
    rest = list(words[2:])
    while rest[0].startswith("-"):
        option, is_joined, _ = rest.pop(0).partition("=")
        if option in DOCKER_VALUED:
            rest = rest if is_joined else rest[1:]
        else:
            assert option in DOCKER_BARE, option
    _image, *command = rest
    if command[:3] == ["python", "-m", "server"]:
        ours(command[3:])
    elif command:
        script(command)


def trtllm(words: Sequence[str]) -> None:
    """``trtllm-serve`` with options of its own, and files that are there."""
    assert words[0] == "trtllm-serve"
    for option, value in zip(words[2::2], words[3::2], strict=True):
        assert option in TRTLLM, option
        if "/" in value:
            assert (tree.ROOT / value).is_file(), value
        else:
            assert f"`{value}`" in tree.text(TRTLLM[option]), value


def script(words: Sequence[str]) -> None:
    """A script of the tree that bash can read."""
    assert words[0] == "bash"
    subprocess.run(["bash", "-n", tree.ROOT / words[1]], check=True, timeout=20)


def ssh(words: Sequence[str]) -> None:
    """Options that ssh takes: with ``-G`` it prints them, and connects to nobody."""
    assert words[0] == "ssh"
    if shutil.which("ssh"):
        done = subprocess.run(
            ["ssh", "-G", *words[1:]], capture_output=True, text=True, check=True, timeout=20
        )
        assert "localforward" in done.stdout


CHECKS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    check.__name__: check for check in (ours, pip, docker, trtllm, script, ssh)
}


def own_words(command: str) -> list[str] | None:
    """Words behind the program's name of a command of kvkeep's own, else None."""
    words = shlex.split(command.splitlines()[0])
    if words[0] == "kvkeep":
        return words[1:]
    if words[0] in ("python", ".venv/bin/python") and words[1:3] == ["-m", "server"]:
        return words[3:]
    return None
