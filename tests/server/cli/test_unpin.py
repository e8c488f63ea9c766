"""``kvkeep unpin``: what was pinned may go again."""

from __future__ import annotations

from tests.server.cli.cached import FIRST, SECOND, Cached


def test_prompts_are_let_go_of_once(holding: Cached) -> None:
    prompts = holding.file(FIRST, SECOND)
    holding.told("pin", "--tokens", prompts)
    one = holding.told("unpin", "--tokens", holding.file(SECOND), "--namespace", "test/model")
    assert one == {"fingerprint": holding.name, "prompts": [{"chunks": 4, "unpinned": 4}]}
    assert holding.told("inspect")["namespaces"][0]["pinned_chunks"] == 5
    shown = holding.run("unpin", "--tokens", prompts)
    assert shown.exit_code == 0
    assert shown.output.splitlines() == [
        "prompt 1: 5 chunks are no longer pinned",
        "prompt 2: 0 chunks are no longer pinned",
    ]
    refused = holding.run("unpin", "--namespace", "0" * 32, "--key", "1" * 32)
    assert refused.exit_code == 1
    assert "UNKNOWN_NAMESPACE" in refused.output
    assert refused.output.count("\n") == 1
