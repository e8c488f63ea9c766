from __future__ import annotations

from pathlib import Path

from server.simulate import report
from server.simulate.replay import run
from server.simulate.settings import Settings, Size, tiers
from server.simulate.traces import read

DATA = Path(__file__).parent / "data"


def test_the_table_says_what_the_document_says() -> None:
    lower = tiers(("50%", "store:unlimited"), "write-through,after-2-uses", None, None)
    settings = Settings(Size(0, 0.25), lower, nodes=3, copies=2)
    document = run(read([DATA / "sessions"]), settings)
    lines = report.table(document).splitlines()
    rows = {line[:26].strip(): line[26:] for line in lines if line.strip()}
    assert rows["hit ratio"].startswith(f"{document['hit_ratio']:.4f} of {document['chunks']:,} ")
    for source, ratio in document["hit_ratio_by_tier"].items():
        # "l1" and the tiers stand twice: what they are, and what was hit there.
        assert f"  {source}".ljust(26) + f"{ratio:.4f}" in lines
    assert "104 requests of 8 sessions in 1,983 s" in rows["trace"]
    assert rows["replayed"] == "2 x over 3 nodes, by session"
    disk = document["tiers"]["disk"]
    assert rows["disk read GB/s"].startswith(f"{disk['read_gbps']:.3f} in all, ")
    assert "after-2-uses" in "\n".join(lines)
    assert f"{document['ttft']['speedup']:.2f} x" in rows["modelled TTFT"]
    assert rows["waiting for tiers"].startswith(f"{document['rates']['waiting_busy']:.1%} of one")
    assert all(line == line.rstrip() for line in lines)


def test_only_reasons_that_occurred_are_shown() -> None:
    shown = report.table(run(read([DATA / "sessions"]), Settings(Size(1 << 60))))
    assert "missed: cold" in shown
    assert "missed: deadline" not in shown
