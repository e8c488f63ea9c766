"""The runner of ``make slow``: its steps end, a broken child is a verdict, a record has a name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.restarts.broken import BREAKS
from tests.slow.__main__ import RECORD, main, record, run_step
from tests.slow.figure import Figure
from tests.slow.step import Step, read_junit, suite_step
from tests.slow.steps import plan, read_bench, read_demo

DEMO = {
    "held": True,
    "seconds": 100.0,
    "acts": [
        {
            "title": "a",
            "claims": [{"text": f"c{n}", "held": True} for n in range(12)],
            "figures": {},
        },
        {"title": "replay", "claims": [], "figures": {"hit_blocks": 2278, "full_blocks": 13662}},
    ],
}


def test_a_step_runs_every_case_of_every_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_SAMPLED", "5")
    code = "import os; print(os.environ['KV_SAMPLED'])"
    step = Step("all", (sys.executable, "-c", code), 30, read=lambda _, out: {"n": Figure(out)})
    assert run_step(step, "1/1 all", tmp_path)["figures"]["n"]["value"] == "\n"


def test_a_step_that_holds(tmp_path: Path) -> None:
    step = Step(
        "ok", (sys.executable, "-c", "print(7)"), 30, read=lambda _, out: {"n": Figure(out)}
    )
    ended = run_step(step, "1/1 ok", tmp_path)
    assert ended["held"] is True
    assert ended["figures"]["n"]["value"] == "7\n"


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("import sys; sys.exit(3)", lambda _, __: {}),
        ("", lambda _, __: {"x": Figure(1, "0", False)}),
        ("", lambda _, __: json.loads("{")),
        ("", lambda _, __: dict[str, Figure]()["missing"]),
    ],
)
def test_what_fails_is_no_success(tmp_path: Path, code: str, read: object) -> None:
    step = Step("bad", (sys.executable, "-c", code), 30, read=read)  # type: ignore[arg-type]
    assert run_step(step, "1/1 bad", tmp_path)["held"] is False


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(99)",
    )
    ended = run_step(Step("hangs", command, 1), "1/1 hangs", tmp_path)
    assert ended["held"] is False
    assert ended["seconds"] < 30
    pid = int((tmp_path / "slow-hangs.out").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_step_that_lacks_something_fails_by_name_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')")
    ended = run_step(Step("traces", command, 30, lacks="X is not set: set it"), "1/1", tmp_path)
    assert ended["held"] is False
    assert ended["exit_code"] is None
    assert ended["error"] == "X is not set: set it"
    assert "NOT RUN: X is not set: set it" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_what_tests_print_becomes_figures(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "def test_a():\n    print({'ratio': 0.5})\n    print('all in 3 s')\n"
    )
    step = suite_step("it", tmp_path / "it.xml", (str(tmp_path),), {}, 60, False, tells=True)
    figures = run_step(step, "1/1 it", tmp_path)["figures"]
    assert {name: one["value"] for name, one in figures.items()} == {
        "tests": 1,
        "failed": 0,
        "skipped": 0,
        "test_a: ratio": 0.5,
        "test_a: said 2": "all in 3 s",
    }


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"machine": {"commit": "abc"}}, f"{RECORD}-abc.json"),
        ({"machine": {"commit": "abc+"}, "only": ["demo"]}, f"{RECORD}-abc-changed-part.json"),
    ],
)
def test_a_record_is_named_after_its_commit(
    tmp_path: Path, document: dict[str, object], name: str
) -> None:
    (tmp_path / "slow.json").write_text("{}")
    record(document, tmp_path / "slow.json", RECORD, tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [name]


def test_the_demo_is_judged_claim_by_claim() -> None:
    figures = read_demo(DEMO, quick=False)
    assert all(figure.met is not False for figure in figures.values())
    assert figures["trace blocks loaded of asked"].value == "2278 of 13662"
    broken = json.loads(json.dumps(DEMO))
    broken["acts"][0]["claims"][3]["held"] = False
    broken["acts"][1]["figures"]["hit_blocks"] = 2277
    broken["seconds"] = 300
    missed = {name for name, figure in read_demo(broken, False).items() if figure.met is False}
    assert missed == {"a: c3", "seconds", "trace blocks loaded of asked"}


def test_the_benchmark_keeps_its_own_verdicts() -> None:
    document = {
        "figures": {"store_ratio": 0.9, "start_s": 2.0, "fill_s": 3.0},
        "targets": {
            "store_ratio": {"target": ">= 0.85", "met": True},
            "start_s": {"target": "<= 1.5", "met": False},
        },
    }
    figures = read_bench(document)
    assert {name: figure.met for name, figure in figures.items()} == {
        "store_ratio": True,
        "start_s": False,
        "fill_s": None,
    }


@pytest.mark.parametrize(("failures", "tests", "met"), [(0, 5, True), (1, 5, False), (0, 0, False)])
def test_a_test_run_without_tests_or_with_failures_missed(
    tmp_path: Path, failures: int, tests: int, met: bool
) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="0" skipped="0"/>'
        "</testsuites>"
    )
    assert all(figure.met is not False for figure in read_junit(report).values()) is met


def test_a_skipped_test_may_be_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        '<testsuites><testsuite tests="5" failures="0" errors="0" skipped="1"/></testsuites>'
    )
    assert read_junit(report)["skipped"].met is None
    assert read_junit(report, may_skip=False)["skipped"].met is False


def test_the_plan_names_each_step_once(tmp_path: Path) -> None:
    names = [step.name for step in plan(1, tmp_path, quick=False)]
    assert len(set(names)) == len(names)
    some = {"demo", "bench", "chaos", "tests marked slow", "fault rows and end to end"}
    assert some | {"sampled families"} <= set(names)
    host = {"schedules", "combinations", "conformance kit", "agentic", "adapter cpu"}
    assert host | {"layer-wise gain", "hooks beside trouble", "agentic, blocks of 256"} <= set(
        names
    )
    devices = {"schedules", "combinations", "host and adapter"}
    assert {f"simulated CUDA: {name}" for name in devices} <= set(names)
    tiers = {"chaos tiers", "tiers sessions", "tiers agentic", "tiers stores", "tiers models"}
    assert tiers | {"simulate", "disk beside fio", "lookup beside a tier"} <= set(names)
    assert {"restarts", *(f"restarts {name}" for name in BREAKS)} <= set(names)
    assert len(names) > len(plan(1, tmp_path, quick=True))


def test_a_step_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--step", "bench", "--step", "no such step"])
    assert end.value.code == 2
    assert "no step ['no such step']" in capsys.readouterr().err
