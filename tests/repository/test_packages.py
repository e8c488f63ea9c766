"""What pyproject.toml says is installed is what stands in the tree."""

import fnmatch
import re
from pathlib import Path

import pytest

import protocol
from tests.repository import tree


def found_packages() -> list[str]:
    return sorted(
        ".".join(path.parent.parts)
        for path in tree.files(*tree.PACKAGES, suffix=".py")
        if path.name == "__init__.py"
    )


def test_package_list_equals_the_tree() -> None:
    assert sorted(tree.array("packages")) == found_packages()


def test_every_folder_with_source_is_a_package() -> None:
    folders = {path.parent for path in tree.files(*tree.PACKAGES, suffix=".py")}
    lacking = [str(f) for f in sorted(folders) if not (tree.ROOT / f / "__init__.py").is_file()]
    assert not lacking


def test_every_data_file_is_packaged() -> None:
    patterns = tree.array('"*"')
    left_out = []
    for path in tree.files(*tree.PACKAGES):
        if path.suffix == ".py":
            continue
        package = path.parent
        while not (tree.ROOT / package / "__init__.py").is_file():
            package = package.parent
        inside = path.relative_to(package).as_posix()
        if not any(fnmatch.fnmatch(inside, pattern) for pattern in patterns):
            left_out.append(str(path))
    assert not left_out


def test_one_version() -> None:
    stated = re.search(r'^version = "(.+)"$', tree.text("pyproject.toml"), re.M)
    assert stated is not None
    assert stated.group(1) == protocol.__version__


def test_console_script_is_the_module() -> None:
    assert 'kvkeep = "server.__main__:main"' in tree.text("pyproject.toml")
    assert re.search(r"\bmain\b", tree.text("server/__main__.py"))


@pytest.mark.parametrize("package", tree.PACKAGES)
def test_types_are_announced(package: str) -> None:
    assert (tree.ROOT / package / "py.typed").is_file()


def test_no_package_is_found_outside_the_three() -> None:
    assert {Path(name.replace(".", "/")).parts[0] for name in found_packages()} == {*tree.PACKAGES}
