"""docs/runbook.md, and other pages for people in need: their commands run, their names exist."""

from __future__ import annotations

import re
from functools import cache

import click
import pytest

import adapter.config
import adapter.serverurl
from protocol.errors import ErrorCode
from protocol.figures import FIGURES, TIER_FIGURES, find
from server import config
from server.cli import COMMANDS, cli
from server.core.tiers.misses import Miss
from server.web.exposition import exposed
from server.web.health import CHECKS
from server.web.names import place
from tests.deploy.observability.expressions import rules
from tests.docs.spans import codes, inline_commands
from tests.repository import tree
from tests.server.web.answers import status, view

PAGES = tuple(
    f"docs/{name}.md"
    for name in ("index", "concepts", "runbook", "faq", "tenants", "events", "observability")
)
RUNBOOK = tree.text("docs/runbook.md")
#: Words of Linux, its tools and TensorRT-LLM, and words of ours that are no names in the code.
OTHERS = {
    *("RemoveIPC", "LimitNOFILE=", "/dev/shm", "T", "/tmp"),
    *("kill -9", "kill -CONT", "ulimit -l", "ulimit -n", "dmesg", "free", "ps", "top"),
    *("journalctl -u kvkeep", "py-spy dump", "kvkeep"),
    *("status=203/EXEC", "status=2/INVALIDARGUMENT"),  # systemd's words
}


@cache
def code() -> str:
    """All of the server's and the adapter's text, with what is filled in as a mark."""
    text = "\n".join(tree.text(path) for path in tree.files(*tree.PACKAGES, suffix=".py"))
    return re.sub(r"\{[^{}]*\}|%[sd]", "…", re.sub(r'"\s*\n\s*f?"', "", text))


@cache
def settings() -> frozenset[str]:
    """Variables that the server or the adapter reads, and the beginning of embedded mode's."""
    names = {config.variable(key) for key in config.KEYS}
    for module in (adapter.config, adapter.serverurl):
        names |= {str(value) for name, value in vars(module).items() if name.startswith("ENV_")}
    return frozenset(names | {"TRTLLM_KVKEEP_INPROC_"})


@cache
def figures() -> frozenset[str]:
    """Figures of STATS that are told apart by a word, which is part of their name."""
    reasons = {f"miss_chunks_{reason.value}" for reason in Miss}
    return frozenset(reasons | {f"error_{error.name.lower()}" for error in ErrorCode})


def parameters(name: str) -> list[click.Parameter]:
    """What a command takes."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found.params


@cache
def options() -> frozenset[str]:
    """Every option of every command."""
    return frozenset(
        option for name in COMMANDS for parameter in parameters(name) for option in parameter.opts
    )


@cache
def metrics() -> frozenset[str]:
    """Metrics as they are served, those of STATS and those beyond."""
    content = exposed(view({}, status()), "")[1].decode()
    told = set(re.findall(r"^# HELP (\w+) ", content, re.M))
    placed = [(name, place(name)) for name in FIGURES]
    return frozenset(
        told | {f"{p.family}{'_total' if p.is_counter else ''}" for _, p in placed if p is not None}
    )


def is_known(word: str) -> bool:
    """Whether something between backticks is a name that the code has."""
    if word in OTHERS or word in COMMANDS or word in CHECKS or word in rules():
        return True
    if word.startswith("--"):
        return set(re.findall(r"--[a-z0-9-]+", word)) <= options()
    if re.fullmatch(r"(TRTLLM_|KVKEEP_)\w+", word):
        return word in settings()
    if re.fullmatch(r"kvkeep_\w+", word):
        return word in metrics()
    if word.startswith("tier_…_"):
        return word.removeprefix("tier_…_") in TIER_FIGURES
    if word.startswith("kvkeep "):
        return word.split()[1] in COMMANDS
    if re.fullmatch(r"(miss_chunks|error)_\w*", word):
        return word in figures()
    if word in FIGURES or (word.endswith("GPU-…") and find(word.replace("…", "0")) is not None):
        return True
    return all(part.strip() in code() for part in word.split("…"))


@pytest.mark.parametrize("word", codes(RUNBOOK))
def test_every_name_in_the_runbook_is_one_of_the_codes(word: str) -> None:
    assert is_known(word)


@pytest.mark.parametrize(
    "word",
    [
        *(
            "miss_chunks_",
            "miss_chunks_cool",
            "tier_…_no_such",
            "--l3-size",
            "kvkeep_no_such_total",
        ),
        *("TRTLLM_KVKEEP_NO_SUCH", "KvkeepNoSuchAlert", "copier_fell_asleep", "kvkeep mend"),
    ],
)
def test_a_name_that_the_code_has_not_is_noticed(word: str) -> None:
    assert not is_known(word)


def test_each_symptom_has_a_table_of_three() -> None:
    parts = re.split(r"^## ", RUNBOOK, flags=re.M)[2:-1]
    assert len(parts) >= 12
    for part in parts:
        rows = [line for line in part.splitlines() if line.startswith("| ")]
        assert len(rows) >= 5, part
        assert rows[0] == "| you see | it means | do |"
        assert [row for row in rows if len(re.split(r" \| ", row.strip("| "))) < 2] == []


@pytest.mark.parametrize("page", [str(path) for path in tree.files("docs", suffix=".md")])
def test_commands_within_sentences_have_the_options_they_name(page: str) -> None:
    for words in inline_commands(tree.text(page)):
        if page not in PAGES and words[0] not in COMMANDS:
            continue  # what the program prints begins with its name, too
        found: click.Command | None = cli
        for word in words:
            if isinstance(found, click.Group):
                found = found.get_command(click.Context(found), word)
        assert found is not None, words
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, words
