import json
from pathlib import Path

import pytest

from adapter.conformance.demo import trace
from adapter.conformance.demo.trace import BLOCK_TOKENS, VOCAB_SIZE, TraceRequest, read_trace

DATA = Path(trace.__file__).parent / "data"


def test_the_excerpt_is_read_whole_and_in_order() -> None:
    requests = read_trace()
    lines = (DATA / trace.FILE_NAME).read_text().splitlines()
    assert len(requests) == len(lines) == trace.NUM_REQUESTS
    assert requests[0] == TraceRequest(6758, tuple(range(14)))
    assert [r.num_tokens for r in requests] == [json.loads(x)["input_length"] for x in lines]
    assert read_trace(3) == requests[:3]


@pytest.mark.parametrize("number", [0, 501])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=r"valid are 1\.\.500"):
        read_trace(number)


def test_equal_ids_are_equal_tokens_and_other_ids_are_not() -> None:
    requests = read_trace(40)
    by_id: dict[int, list[int]] = {}
    for request in requests:
        tokens = request.tokens()
        assert len(tokens) == request.num_tokens
        assert 0 <= min(tokens) <= max(tokens) < VOCAB_SIZE
        for ordinal, block_id in enumerate(request.block_ids):
            block = tokens[ordinal * BLOCK_TOKENS : (ordinal + 1) * BLOCK_TOKENS]
            known = by_id.setdefault(block_id, block)
            assert known[: len(block)] == block[: len(known)]
    full = [tuple(block) for block in by_id.values() if len(block) == BLOCK_TOKENS]
    assert len(set(full)) == len(full)


def test_ids_beyond_the_vocabulary_stay_distinct() -> None:
    one, other = (TraceRequest(BLOCK_TOKENS, (i,)).tokens() for i in (5, 5 + VOCAB_SIZE))
    assert one[:2] == [0, 5]
    assert other[:2] == [1, 5]


def test_source_and_licence_travel_with_the_excerpt() -> None:
    told = (DATA / "SOURCE.md").read_text()
    assert "kvcache-ai/Mooncake" in told
    assert "3b5a594" in told
    assert "Apache License" in (DATA / "LICENSE-APACHE-2.0.txt").read_text()
