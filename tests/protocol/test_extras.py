"""What is said to install for an optional part: packages by name, whatever kvkeep came from."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Callable

import pytest

from protocol.extras import install
from tests.repository import tree

Requires = Callable[[str], list[str] | None]


def names(command: str) -> list[str]:
    """Packages that a command installs, without versions."""
    pip, verb, *words = shlex.split(command)
    assert (pip, verb) == ("pip", "install")
    return [re.split(r"[<>=]", word)[0] for word in words]


@pytest.mark.parametrize("extra", ["s3", "valkey", "mooncake", "encryption", "tracing"])
def test_the_packages_are_those_of_the_extra_and_never_kvkeep_itself(extra: str) -> None:
    wanted = [re.split(r"[<>=]", line)[0] for line in tree.array(extra)]
    assert wanted
    assert names(install(extra)) == wanted


def test_versions_are_for_pip_and_not_for_the_shell() -> None:
    assert install("s3").startswith("pip install 'obstore>=")


def test_several_extras_are_one_command_and_name_nothing_twice() -> None:
    assert names(install("valkey", "s3", "valkey")) == ["valkey-glide-sync", "obstore"]


def test_a_checkout_that_was_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(package: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "requires", not_there)
    assert install("s3", "valkey") == "pip install '.[s3,valkey]'"


def test_other_conditions_than_an_extra_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["pyzmq>=26", 'tomli>=2; python_version < "3.11"', "obstore>=0.8; extra == 's3'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: lines)
    assert install("s3") == "pip install 'obstore>=0.8'"
