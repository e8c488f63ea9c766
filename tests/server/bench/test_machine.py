import subprocess
from pathlib import Path

import pytest

from server.bench import machine


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    subprocess.run(("git", "-C", str(folder), *identity, *arguments), check=True, timeout=30)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "__init__.py").write_text("one = 1\n")
    git(tmp_path, "add", "__init__.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_commit_and_changes(checkout: Path) -> None:
    name = machine.commit(checkout)
    assert name is not None
    assert len(name) == 12
    (checkout / "__init__.py").write_text("one = 2\n")
    assert machine.commit(checkout) == name + "+"


def test_a_copy_inside_a_checkout_is_not_its_code(checkout: Path) -> None:
    inside = checkout / "site-packages"
    inside.mkdir()
    (inside / "__init__.py").write_text("")
    assert machine.commit(inside) is None


def test_no_checkout(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) is None


def test_what_is_told_of_this_machine() -> None:
    facts = machine.describe()
    assert facts["cpus"]
    assert facts["kernel"]
    assert isinstance(facts["memory_bytes"], int)
    assert {"pyzmq", "numpy", "msgspec", "msgpack", "kvkeep", "python"} <= facts.keys()
