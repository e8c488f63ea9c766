"""The command: our own connector holds, a broken one does not, one that is not there is named."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from adapter.__main__ import main
from tests.adapter.conformance.kit import breakers

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
