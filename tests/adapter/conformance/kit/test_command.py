"""The command: our own connector holds, a broken one does not, one that is not there is named."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.__main__ import main
from adapter.conformance.kit import command
from adapter.conformance.kit.bench import Bench
from adapter.conformance.kit.rules import RULES, Rule
from adapter.conformance.kit.verdict import (
    NO_ADP,
    NO_ASYNC,
    NO_GROUPS,
    NO_SERVER,
    PRIVATE_SERVERS,
    Verdict,
    held,
)
from adapter.conformance.schedules import service
from tests.adapter.conformance.kit import breakers, breakers_foreign, foreign

pytestmark = pytest.mark.torch


def test_our_connector_holds_to_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["conformance", "--json", "--schedules", "1"])
    result = json.loads(capsys.readouterr().out)
    unheld = {
        rule["rule"]: f"{rule['outcome']}: {rule['evidence']}"
        for rule in result["rules"]
        if rule["outcome"] != "held"
    }
    assert unheld == {}
    assert code == 0


def test_another_connector_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            *("conformance", "--module", breakers.__name__, "--rule", "§9.1"),
            *("--scheduler-class", "GreedyScheduler", "--worker-class", "SoundWorker"),
            *("--server-url", "dict://command"),
        ]
    )
    out = capsys.readouterr().out
    assert code == 1
    assert "BROKEN" in out
    assert "leaves one token" in out


ALONE = [
    argument
    for source in dict.fromkeys(rule.source for rule in RULES)
    if source not in ("§5", "§8", "§12.14", "§12.16", "§13")  # which start processes
    for argument in ("--rule", source)
]


@pytest.mark.parametrize(
    "rules", [ALONE, pytest.param([], marks=pytest.mark.slow)], ids=["one rank", "all"]
)
def test_a_connector_that_owes_nothing_to_ours_breaks_no_rule(
    rules: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = main(
        [
            *("conformance", "--module", foreign.__name__, "--json", *rules),
            *("--scheduler-class", "FolderScheduler", "--worker-class", "FolderWorker"),
            *("--server-url", f"folder://{tmp_path}"),
        ]
    )
    found = json.loads(capsys.readouterr().out)["rules"]
    assert [rule for rule in found if rule["outcome"] == "BROKEN"] == []
    assert code == 0
    unseen = {rule["evidence"] for rule in found if rule["outcome"] == "not observed"}
    # It has no server, takes one layer group, and loads synchronously: nothing else is unseen.
    known = {NO_SERVER, NO_GROUPS, NO_ASYNC}
    assert [why for why in unseen - known if "simulated device" not in why] == []


def test_a_server_by_command_is_stopped_and_killed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"ipc://{tmp_path}/kvkeep.sock"
    launch = f"{sys.executable} -m server launch --endpoint {url} --l1-size 32MiB"
    arguments = ["--server-url", url, "--server-command", f"{launch} --arena-dir {tmp_path}"]
    assert main(["conformance", "--rule", "9.10", "--rule", "10", "--json", *arguments]) == 0
    shown = capsys.readouterr()
    assert f"to listen at {url}" in shown.err
    rules = json.loads(shown.out)["rules"]
    assert [rule["outcome"] for rule in rules] == ["held", "held"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--server-url", "ipc:///nobody/here.sock"], "nothing listens at ipc:///nobody/here"),
        (["--server-url", "ipc:///a", "--server-command", "/no/such"], "cannot start '/no/such'"),
    ],
)
def test_no_server_is_said_at_once(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == 2
    shown = capsys.readouterr().out
    assert "no server" in shown
    assert why in shown.replace("\n", " ")


def test_no_room_for_a_server_is_no_broken_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "ARENA_BYTES", 1 << 60)
    assert main(["conformance", "--rule", "12.17"]) == 2
    assert "no server" in capsys.readouterr().out


def test_a_module_that_cannot_be_imported_breaks_no_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kit_half_written.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["conformance", "--module", "kit_half_written"]) == 2
    assert "cannot be loaded: SyntaxError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT")],
)
def test_what_it_started_is_gone_when_it_is_told_to_end(
    number: int,
    code: int,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benches: list[Any] = []

    def is_ended(bench: Bench) -> Verdict:
        benches.append(bench)
        signal.raise_signal(number)
        return held("nobody was told to end")

    monkeypatch.setattr(command, "RULES", (Rule("§9.1", "ends", is_ended),))
    assert main(["conformance"]) == code
    out = capsys.readouterr().out
    assert f"ended by {name}" in out
    assert len(out.splitlines()) == 1
    (bench,) = benches
    assert bench.service.child.process.poll() is not None
    assert not Path(bench.service.url.removeprefix("ipc://")).parent.exists()
    assert not bench.models.exists()


def test_settings_that_are_wrong_break_no_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "soon")
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", "--rule", "12.17"])
    assert "TRTLLM_KVKEEP_QUERY_BUDGET_MS='soon'" in capsys.readouterr().err


def test_private_servers_are_told_from_others_of_ones_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["conformance", "--rule", "9.10", "--json", "--server-url", "inproc://"]) == 0
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert rule["evidence"] == PRIVATE_SERVERS


def test_attention_data_parallelism_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--scheduler-class", "PlainScheduler", "--worker-class", "PlainWorker"]
    arguments = ["--rule", "12.17", "--server-url", "folder:///nowhere", "--json"]
    assert main(["conformance", "--module", breakers_foreign.__name__, *names, *arguments]) == 0
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert rule["evidence"] == NO_ADP


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--server-command", "x"], "--server-command needs --server-url"),
        (["--server-url", "ipc:///a", "--server-command", "a 'b"], "No closing quotation"),
        (["--server-url", "ipc:///a", "--server-command", " "], "--server-command is empty"),
        (["--schedules", "0"], "'0' is no whole number above 0"),
        (["--schedules", "abc"], "'abc' is no whole number above 0"),
    ],
)
def test_options_that_make_no_sense_are_named(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", *arguments])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["9.7", "12.8"])
def test_a_connector_that_never_loads_breaks_no_rule(
    rule: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--server-url", f"folder://{tmp_path}/missing", "--rule", rule, "--json"]
    names = ["--scheduler-class", "IdleScheduler", "--worker-class", "IdleWorker"]
    assert main(["conformance", "--module", breakers_foreign.__name__, *names, *arguments]) == 0
    (found, *_) = json.loads(capsys.readouterr().out)["rules"]
    assert found["outcome"] == "not observed"
    assert "see that the connector's server runs" in found["evidence"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--module", "no.such.module"],
        ["--module", breakers.__name__, "--scheduler-class", "NoSuchClass"],
    ],
)
def test_a_connector_that_is_not_there(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == 2
    assert "no such connector" in capsys.readouterr().out


def test_a_rule_that_is_not_there_checks_nothing_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", "--rule", "§99"])
    assert "§9.11" in capsys.readouterr().err


def test_a_rule_is_found_without_its_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--rule", "12.17", "--json"]) == 0
    sources = [rule["source"] for rule in json.loads(capsys.readouterr().out)["rules"]]
    assert sources == ["§12.17"]


def test_a_wrong_url_breaks_no_rule_but_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", "--server-url", "nowhere"])
    shown = capsys.readouterr()
    assert "--server-url" in shown.err
    assert "ipc:///absolute/path" in shown.err
    assert "BROKEN" not in shown.out


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "conformance" in capsys.readouterr().err
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in re.findall(r"python -m (adapter\.[a-z.]+)", shown):
        assert importlib.util.find_spec(f"{name}.__main__"), name
