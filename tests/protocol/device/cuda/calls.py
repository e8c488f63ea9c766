"""What a module calls of bindings, read from its source."""

import ast
from pathlib import Path


def calls_made(path: Path) -> list[tuple[str, int]]:
    """Names of the checked calls, and how many arguments each is given."""
    return [
        (node.args[0].value, len(node.args) - 1)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("_call", "_answer")
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def attributes_asked(path: Path) -> set[str]:
    """Constant strings in capitals: names of a device's properties."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isupper()
        and "_" in node.value
    }


def parameters_of(doc: str | None) -> int:
    """How many parameters a function of the bindings says it has, by its first line."""
    line = (doc or "").splitlines()[0]
    inside = line[line.index("(") + 1 : line.rindex(")")]
    depth, commas = 0, 0
    for letter in inside:
        depth += letter in "[("
        depth -= letter in "])"
        commas += letter == "," and depth == 0
    return commas + 1 if inside.strip() else 0
