"""B04: a prompt that is cached to its last token still leaves one to compute, at any local hit.

Every length around every chunk boundary, against every match on the device; loads are checked for
writing the offered range and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.adapter.enginerig import SIZE, EngineRig, page_content, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.faults.bystander import engaged, stats
from tests.wire.process import ServerProcess, wait_until

DEVICE = 0xD7


def load_behind(rig: EngineRig, prompt: list[int], num_computed: int) -> int:
    """One request whose leading tokens the host's own pool holds; returns the tokens offered."""
    request = FakeRequest(rig.next_id, list(prompt))
    rig.next_id += 1
    offered = rig.query(request, num_computed)
    pages = rig.hand_out(-(-len(prompt) // SIZE))
    rig.pages[pages] = DEVICE
    rig.scheduler.update_state_after_alloc(request, pages)
    scheduled = len(prompt) - num_computed - offered
    report = Report(request.request_id, list(prompt), pages, num_computed, scheduled)

    def forward() -> None:
        first, stop = num_computed // SIZE, (num_computed + offered) // SIZE
        for block, page in enumerate(pages):
            if offered and first <= block < stop:
                expected = page_content(prompt[: (block + 1) * SIZE])
                assert np.array_equal(rig.pages[page], expected), block
            else:
                assert (rig.pages[page] == DEVICE).all(), block
        rig.fill(prompt, pages, 0)

    rig.iterate(Output([report]), forward=forward)
    request.tokens.append(1)
    if rig.scheduler.request_finished(request, pages):
        rig.collect((request.request_id,))
        rig.settle(request.request_id)
    return offered


def usable_end(length: int, chunk_tokens: int) -> int:
    """Where an offer ends: whole blocks, of whole chunks of the prompt, one token left."""
    return min((length - 1) // SIZE * SIZE, length // chunk_tokens * chunk_tokens)


@pytest.mark.parametrize("chunk_tokens", [SIZE, 3 * SIZE])
def test_b04_lengths_around_boundaries_and_local_hits(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", str(chunk_tokens))
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    longest = tokens(6 * chunk_tokens // 2 + 2 * chunk_tokens, seed=chunk_tokens)
    num_chunks = len(longest) // chunk_tokens
    try:
        rig.run_saved([*longest, 1])
        lengths = {k * chunk_tokens + d for k in range(1, num_chunks + 1) for d in (-1, 0, 1)}
        for length in sorted(n for n in lengths if 0 < n <= len(longest)):
            prompt = longest[:length]
            for num_computed in range(length):
                offered = rig.query(FakeRequest(rig.next_id, list(prompt)), num_computed)
                rig.next_id += 1
                end = num_computed + offered
                assert end <= length - 1  # at least one token is left to compute
                if offered:
                    assert num_computed % SIZE == 0
                    assert end % SIZE == 0
                elif num_computed % SIZE == 0:
                    assert num_computed >= usable_end(length, chunk_tokens)
                rig.iterate(Output())  # it was not allocated: its offer goes back
        for length in (len(longest), len(longest) - 1, 2 * chunk_tokens, 2 * chunk_tokens + 1):
            for num_computed in (0, SIZE, chunk_tokens, length - 1, length // 2):
                offered = load_behind(rig, longest[:length], num_computed)
                usable = usable_end(length, chunk_tokens) - num_computed
                expected = usable if num_computed % SIZE == 0 and usable > 0 else 0
                assert offered == expected, (length, num_computed)
    finally:
        rig.close()
    with engaged(server) as watcher:
        assert wait_until(lambda: stats(watcher)["leases"] == 0)
        assert stats(watcher)["pinned_slots"] == 0
