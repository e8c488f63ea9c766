import itertools

import pytest

from adapter.conformance.demo.texts import prompts
from adapter.conformance.host.tokenizer import VOCAB_SIZE, decode


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), len(left))


def test_prompts_have_the_length_that_was_asked_for() -> None:
    for prompt in prompts(6):
        assert 300 <= len(prompt.tokens) <= 600
        assert all(0 <= token < VOCAB_SIZE for token in (*prompt.tokens, *prompt.follow_up))


def test_one_desk_shares_its_instruction_and_two_desks_share_nothing_but_the_first_token() -> None:
    found = prompts(6)
    for one in found:
        for other in found:
            shared = common(one.tokens, other.tokens)
            if one is not other:
                assert (shared >= 300) == (one.name[0] == other.name[0])
                assert shared >= 300 or shared < 16


def test_neighbours_are_of_different_desks() -> None:
    names = [prompt.name for prompt in prompts(6)]
    assert len(set(names)) == 6
    assert all(a[0] != b[0] for a, b in itertools.pairwise(names))


def test_a_longer_prompt_continues_the_conversation() -> None:
    prompt = prompts(1)[0]
    longer = prompt.longer([65, 66])
    assert longer.name == f"{prompt.name}+"
    assert longer.tokens == (*prompt.tokens, 65, 66, *prompt.follow_up)
    assert decode(longer.tokens).endswith("You:")


@pytest.mark.parametrize("number", [0, 7])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=r"valid are 1\.\.6"):
        prompts(number)
