"""What the command line refuses, before anything is started."""

from __future__ import annotations

import pytest

from tests.restarts.__main__ import MIN_CHUNKS, main
from tests.restarts.content import CHAIN_CHUNKS
from tests.restarts.ledger import FRESH_ANSWERS


@pytest.mark.parametrize("arguments", [("--kills", "3"), ("--chunks", str(MIN_CHUNKS - 1))])
def test_a_run_that_is_too_small_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert f"4 kills and {MIN_CHUNKS} chunks at least" in capsys.readouterr().err


def test_what_must_be_fresh_is_a_small_part_of_the_least_cache() -> None:
    assert 3 * FRESH_ANSWERS * CHAIN_CHUNKS < MIN_CHUNKS
