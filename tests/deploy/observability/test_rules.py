"""Alert rules and dashboard as files: valid, every alert seen to fire and explained in the docs."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.figures import FIGURES, Kind
from protocol.messages import Op
from server.web.exposition import exposed
from server.web.watch import View
from tests.deploy.observability.expressions import panels, queries, rules, series
from tests.deploy.observability.promtool import RULES, promtool
from tests.server.web.answers import QUOTA, answer, latency, status
from tests.wire.process import ROOT

UNIT_TESTS = Path(__file__).with_name("rules.test.yml")


def test_promtool_is_content_with_the_rules() -> None:
    assert promtool("check", "rules", RULES) == ""


def test_promtool_is_content_with_the_configuration() -> None:
    assert promtool("check", "config", "deploy/prometheus/prometheus.yml") == ""


def test_promtool_sees_a_broken_rule(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    text = RULES.read_text(encoding="utf-8").replace("kvkeep_up == 0", "kvkeep_up = = 0")
    broken.write_text(text, encoding="utf-8")
    assert "exit code" in promtool("check", "rules", broken)


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    assert promtool("test", "rules", UNIT_TESTS) == ""
    tested = set(re.findall(r"alertname: (\w+)", UNIT_TESTS.read_text(encoding="utf-8")))
    assert tested == set(rules())


def test_each_alert_is_explained_and_has_what_an_operator_reads() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    text = RULES.read_text(encoding="utf-8")
    for name in rules():
        assert f"`{name}`" in page, f"docs/observability.md does not explain {name}"
    assert text.count("summary:") == text.count("description:") == len(rules())
    assert text.count("severity:") == len(rules())


def test_every_series_that_is_named_is_one_that_is_told() -> None:
    values = {"complaint_x": 1, "copier_device_bytes_GPU-1": 1, "tier_disk_up": 1}
    values |= {f"tier_disk_{name}_bytes": 1 for name in ("used", "capacity")}
    values |= {name: 1 for name, figure in FIGURES.items() if figure.kind is Kind.GAUGE}
    told = status(latency={op.name: latency(b0=1) for op in Op})
    latest = answer(values, told, quotas=(QUOTA,))
    content = exposed(View(latest, latest), "")[1].decode()
    names = {line.partition(" ")[0].partition("{")[0] for line in content.splitlines()}
    for where, expression in {**rules(), **queries()}.items():
        for one in series(expression):
            assert one.partition("{")[0] in names, f"{where} names {one}"


def test_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in panels()}) == len(panels())
