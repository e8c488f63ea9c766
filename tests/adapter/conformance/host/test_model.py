from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from adapter.conformance.host.forward import ForwardEntry, TokenCell  # noqa: E402
from adapter.conformance.host.model import Transformer  # noqa: E402
from adapter.conformance.host.weights import TINY, WIDE, ModelConfig, make_weights  # noqa: E402

pytestmark = pytest.mark.torch

BLOCK = 4
SMALL = replace(TINY, max_position_embeddings=48)
NUM_BLOCKS = 30


def make_model(config: ModelConfig = SMALL) -> Transformer:
    torch.set_num_threads(1)
    model = Transformer(config, make_weights(config), BLOCK)
    model.bind_pool(torch.full(model.pool_shape(NUM_BLOCKS).shape, float("nan")))
    return model


MODEL = make_model()


def forward(model: Transformer, parts: Sequence[tuple[list[int], int, int, Sequence[int]]]) -> Any:
    """Run one forward over (tokens, start, end, blocks) parts; logits of each part's last token."""
    entries = [
        ForwardEntry(start, end - start, tokens[start:end], tuple(blocks), True, True, None)
        for tokens, start, end, blocks in parts
    ]
    model.begin(entries)
    for layer in range(model.num_layers):
        model.layer(layer, entries)
    model.end(entries)
    return [model.sample(entry)[1] for entry in entries]


def pages(model: Transformer, blocks: Sequence[int], num_tokens: int) -> Any:
    """KV of the first tokens: float32[layers, 2, heads, num_tokens, dim]."""
    chosen = model._pool[list(blocks)]
    joined = chosen.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
    return joined[:, :, :, :num_tokens].clone()


def poison() -> None:
    MODEL._pool.fill_(float("nan"))


def computed_alone(tokens: list[int]) -> Any:
    poison()
    logits = forward(MODEL, [(tokens, 0, len(tokens), range(12))])[0]
    return logits, pages(MODEL, range(12), len(tokens))


TOKENS = st.lists(st.integers(0, 255), min_size=2, max_size=40)


@settings(max_examples=25)
@given(tokens=TOKENS, other=TOKENS, data=st.data())
def test_batch_invariance(tokens: list[int], other: list[int], data: st.DataObject) -> None:
    """However tokens are cut, batched, placed or taken from a hit: the same bits."""
    logits, kv = computed_alone(tokens)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(kv).all()
    order = data.draw(st.permutations(range(NUM_BLOCKS)))
    mine, theirs = order[:12], order[12:24]
    hit = data.draw(st.integers(0, len(tokens) - 1))
    inside = (
        sorted(data.draw(st.sets(st.integers(hit + 1, len(tokens) - 1))))
        if hit < len(tokens) - 1
        else []
    )
    poison()
    for position in range(hit):  # a hit: pages filled by somebody else
        block, offset = divmod(position, BLOCK)
        MODEL._pool[mine[block]][:, :, :, offset] = kv[:, :, :, position]
    start, got = hit, None
    other_start = 0
    for end in [*inside, len(tokens)]:
        parts = [(tokens, start, end, mine)]
        other_end = min(len(other), other_start + 3)
        if other_end > other_start:
            parts.insert(data.draw(st.integers(0, 1)), (other, other_start, other_end, theirs))
        got = forward(MODEL, parts)[[part[0] is tokens for part in parts].index(True)]
        start, other_start = end, other_end
    assert torch.equal(got, logits)
    assert torch.equal(pages(MODEL, mine, len(tokens)), kv)


@pytest.mark.parametrize("layer", range(SMALL.num_hidden_layers))
@pytest.mark.parametrize("position", [0, 5, 19])
@pytest.mark.parametrize("side", [0, 1], ids=["key", "value"])
def test_one_flipped_byte_changes_the_logits(layer: int, position: int, side: int) -> None:
    """The control: equality above would notice a single wrong byte of any page."""
    tokens = [(7 * i) % 251 for i in range(22)]
    poison()
    forward(MODEL, [(tokens, 0, 21, range(12))])
    right = forward(MODEL, [(tokens, 21, 22, range(12))])[0]
    values = MODEL._pool[position // BLOCK, layer, side, 0, position % BLOCK]
    values.view(torch.uint8)[2] ^= 0x55
    wrong = forward(MODEL, [(tokens, 21, 22, range(12))])[0]
    assert not torch.equal(right, wrong)
    values.view(torch.uint8)[2] ^= 0x55
    assert torch.equal(forward(MODEL, [(tokens, 21, 22, range(12))])[0], right)


def test_a_poisoned_page_shows_where_it_is_valid_and_nowhere_else() -> None:
    tokens = list(range(1, 21))
    poison()
    forward(MODEL, [(tokens, 0, 16, range(5))])
    MODEL._pool[5:] = float("nan")
    assert torch.isfinite(forward(MODEL, [(tokens, 16, 20, range(12))])[0]).all()
    MODEL._pool[1] = float("nan")
    assert torch.isnan(forward(MODEL, [(tokens, 16, 20, range(12))])[0]).any()


def test_attention_reads_the_past_and_order_matters() -> None:
    first = forward(MODEL, [([1, 2, 3, 4, 5], 0, 5, range(12))])[0]
    swapped = forward(MODEL, [([2, 1, 3, 4, 5], 0, 5, range(12))])[0]
    assert not torch.equal(first, swapped)


def test_a_fed_back_token_is_read_on_the_stream() -> None:
    logits, _ = computed_alone([1, 2, 3])
    poison()
    forward(MODEL, [([1, 2], 0, 2, range(12))])
    cell = TokenCell()
    cell.token = 3
    entry = ForwardEntry(2, 1, cell, tuple(range(12)), True, False, None)
    MODEL.begin([entry])
    for layer in range(MODEL.num_layers):
        MODEL.layer(layer, [entry])
    MODEL.end([entry])
    token, got = MODEL.sample(entry)
    assert torch.equal(got, logits)
    assert token == int(logits.argmax())


def test_rotary_halves_match_the_textbook_form() -> None:
    config = SMALL
    hidden = torch.linspace(-1, 1, config.hidden_size)
    query = torch.from_numpy(make_weights(config)["model.layers.0.self_attn.q_proj.weight"])
    scaled = (query * config.head_dim**-0.5) @ hidden
    position, half = 11, config.head_dim // 2
    rates = config.rope_theta ** (-torch.arange(half) / half)
    cos, sin = torch.cos(position * rates), torch.sin(position * rates)
    heads = scaled.view(-1, config.head_dim)
    left, right = heads[:, :half], heads[:, half:]
    textbook = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=1).view(-1)
    fused = MODEL._layers[0].qkv @ hidden
    num_qk = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    turned = fused[: textbook.numel()] * MODEL._cos[position][: textbook.numel()]
    swapped = fused[num_qk + config.num_key_value_heads * config.head_dim :]
    turned += swapped[: textbook.numel()] * MODEL._sin[position][: textbook.numel()]
    torch.testing.assert_close(turned, textbook)


def test_two_geometries_have_unequal_pages() -> None:
    wide = make_model(replace(WIDE, max_position_embeddings=48))
    tiny_page = MODEL.pool_shape(1).shape
    wide_page = wide.pool_shape(1).shape
    assert tiny_page == (1, 3, 2, 2 * BLOCK * 16)
    assert wide_page == (1, 4, 2, 3 * BLOCK * 16)
    assert torch.isfinite(forward(wide, [([1, 2, 3], 0, 3, range(3))])[0]).all()
    assert wide.max_seq_len == 48
