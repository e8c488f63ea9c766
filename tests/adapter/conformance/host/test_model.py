from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from adapter.conformance.host.errors import PageMismatchError  # noqa: E402
from adapter.conformance.host.forward import ForwardEntry, TokenCell  # noqa: E402
from adapter.conformance.host.model import Transformer  # noqa: E402
from adapter.conformance.host.weights import (  # noqa: E402
    LATENT,
    SLIDING,
    TINY,
    WIDE,
    ModelConfig,
    make_weights,
)

pytestmark = pytest.mark.torch

BLOCK = 4
SMALL = replace(TINY, max_position_embeddings=48)
NUM_BLOCKS = 30


POOLS: dict[Transformer, Any] = {}


def make_model(config: ModelConfig = SMALL, kv_dtype: str = "float32") -> Transformer:
    torch.set_num_threads(1)
    model = Transformer(config, make_weights(config), BLOCK, kv_dtype=kv_dtype)
    shape = model.pool_shape(NUM_BLOCKS)
    POOLS[model] = torch.empty(shape.shape, dtype=getattr(torch, shape.dtype_name))
    model.bind_pool(POOLS[model])
    poison(model)
    return model


def rows(model: Transformer) -> Any:
    """The pool as ``[blocks, layers, kv_factor, heads, BLOCK, dim]``."""
    heads, dim = model.config.num_key_value_heads, model.config.head_dim
    pool = POOLS[model]
    return pool.view(*pool.shape[:3], heads, BLOCK, dim)


def poison(model: Transformer) -> None:
    POOLS[model].view(torch.uint8).fill_(0xFF)


MODEL = make_model()
WINDOWS = replace(SLIDING, num_hidden_layers=3, layer_windows=(0, 6, 1), max_position_embeddings=48)
VARIANTS = {
    "full": MODEL,
    "latent": make_model(replace(LATENT, max_position_embeddings=48)),
    "fp8": make_model(SMALL, "float8_e4m3fn"),
    "bfloat16": make_model(SMALL, "bfloat16"),
    "windows": make_model(WINDOWS),
    "latent-fp8-windows": make_model(
        replace(LATENT, layer_windows=(5, 0, 9), max_position_embeddings=48), "float8_e4m3fn"
    ),
}


def forward(model: Transformer, parts: Sequence[tuple[list[int], int, int, Sequence[int]]]) -> Any:
    """Run one forward over (tokens, start, end, blocks) parts; logits of each part's last token."""
    entries = [
        ForwardEntry(start, end - start, tokens[start:end], (tuple(blocks),), True, True, None)
        for tokens, start, end, blocks in parts
    ]
    model.begin(entries)
    for layer in range(model.num_layers):
        model.layer(layer, entries)
    model.end(entries)
    return [model.sample(entry)[1] for entry in entries]


def pages(model: Transformer, blocks: Sequence[int], num_tokens: int) -> Any:
    """KV of the first tokens: [layers, kv_factor, heads, num_tokens, dim]."""
    joined = rows(model)[list(blocks)].permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
    return joined[:, :, :, :num_tokens].clone()


def computed_alone(model: Transformer, tokens: list[int]) -> Any:
    poison(model)
    logits = forward(model, [(tokens, 0, len(tokens), range(12))])[0]
    return logits, pages(model, range(12), len(tokens))


TOKENS = st.lists(st.integers(0, 255), min_size=2, max_size=40)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(tokens=TOKENS, other=TOKENS, data=st.data())
def test_batch_invariance(
    variant: str, tokens: list[int], other: list[int], data: st.DataObject
) -> None:
    """However tokens are cut, batched, placed or taken from a hit: the same bits."""
    model = VARIANTS[variant]
    logits, kv = computed_alone(model, tokens)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(kv.float()).all()
    order = data.draw(st.permutations(range(NUM_BLOCKS)))
    mine, theirs = order[:12], order[12:24]
    hit = data.draw(st.integers(0, len(tokens) - 1))
    inside = (
        sorted(data.draw(st.sets(st.integers(hit + 1, len(tokens) - 1))))
        if hit < len(tokens) - 1
        else []
    )
    poison(model)
    for position in range(hit):  # a hit: pages filled by somebody else
        block, offset = divmod(position, BLOCK)
        rows(model)[mine[block]][:, :, :, offset] = kv[:, :, :, position]
    if hit:  # what no window reaches is not there
        for layer, window in enumerate(model.windows):
            for position in range(hit - window + 1 if window else 0):
                block, offset = divmod(position, BLOCK)
                rows(model)[mine[block], layer, :, :, offset] = float("nan")
    start, got = hit, None
    other_start = 0
    for end in [*inside, len(tokens)]:
        parts = [(tokens, start, end, mine)]
        other_end = min(len(other), other_start + 3)
        if other_end > other_start:
            parts.insert(data.draw(st.integers(0, 1)), (other, other_start, other_end, theirs))
        got = forward(model, parts)[[part[0] is tokens for part in parts].index(True)]
        start, other_start = end, other_end
    assert torch.equal(got, logits)
    computed = pages(model, mine, len(tokens))[:, :, :, hit:]
    assert torch.equal(computed.view(torch.uint8), kv[:, :, :, hit:].contiguous().view(torch.uint8))


@pytest.mark.parametrize("layer", range(SMALL.num_hidden_layers))
@pytest.mark.parametrize("position", [0, 5, 19])
@pytest.mark.parametrize("side", [0, 1], ids=["key", "value"])
def test_one_flipped_byte_changes_the_logits(layer: int, position: int, side: int) -> None:
    """The control: equality above would notice a single wrong byte of any page."""
    tokens = [(7 * i) % 251 for i in range(22)]
    poison(MODEL)
    forward(MODEL, [(tokens, 0, 21, range(12))])
    right = forward(MODEL, [(tokens, 21, 22, range(12))])[0]
    values = rows(MODEL)[position // BLOCK, layer, side, 0, position % BLOCK]
    values.view(torch.uint8)[2] ^= 0x55
    wrong = forward(MODEL, [(tokens, 21, 22, range(12))])[0]
    assert not torch.equal(right, wrong)
    values.view(torch.uint8)[2] ^= 0x55
    assert torch.equal(forward(MODEL, [(tokens, 21, 22, range(12))])[0], right)


def test_a_poisoned_page_shows_where_it_is_valid_and_nowhere_else() -> None:
    tokens = list(range(1, 21))
    poison(MODEL)
    forward(MODEL, [(tokens, 0, 16, range(5))])
    rows(MODEL)[5:] = float("nan")
    assert torch.isfinite(forward(MODEL, [(tokens, 16, 20, range(12))])[0]).all()
    rows(MODEL)[1] = float("nan")
    assert torch.isnan(forward(MODEL, [(tokens, 16, 20, range(12))])[0]).any()


def test_attention_reads_the_past_and_order_matters() -> None:
    first = forward(MODEL, [([1, 2, 3, 4, 5], 0, 5, range(12))])[0]
    swapped = forward(MODEL, [([2, 1, 3, 4, 5], 0, 5, range(12))])[0]
    assert not torch.equal(first, swapped)


def test_a_fed_back_token_is_read_on_the_stream() -> None:
    logits, _ = computed_alone(MODEL, [1, 2, 3])
    poison(MODEL)
    forward(MODEL, [([1, 2], 0, 2, range(12))])
    cell = TokenCell()
    cell.token = 3
    entry = ForwardEntry(2, 1, cell, (tuple(range(12)),), True, False, None)
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


@pytest.mark.parametrize("layer", [1, 2])
def test_a_window_sees_its_tokens_and_no_others(layer: int) -> None:
    model = VARIANTS["windows"]
    tokens, window = [(5 * i) % 251 for i in range(22)], model.windows[layer]
    poison(model)
    forward(model, [(tokens, 0, 21, range(12))])
    right = forward(model, [(tokens, 21, 22, range(12))])[0]
    first_seen = 21 - window + 1
    for position in range(first_seen - 3, 21):
        page = rows(model)[position // BLOCK, layer, :, :, position % BLOCK]
        kept = page.clone()
        page.fill_(float("nan"))
        got = forward(model, [(tokens, 21, 22, range(12))])[0]
        assert torch.isnan(got).any() == (position >= first_seen), position
        assert torch.isnan(got).any() or torch.equal(got, right)
        page.copy_(kept)


def test_a_page_that_is_needed_and_absent_raises() -> None:
    tokens = list(range(1, 21))
    poison(MODEL)
    forward(MODEL, [(tokens, 0, 16, range(5))])
    with pytest.raises(PageMismatchError, match="need pages"):
        forward(MODEL, [(tokens, 16, 20, (0, -1, 2, 3, 4))])
    with pytest.raises(PageMismatchError, match="need pages"):
        forward(MODEL, [(tokens, 16, 20, (0, 1, 2, 3))])


def test_pages_outside_a_window_may_be_absent() -> None:
    model = make_model(replace(WINDOWS, layer_windows=(6, 6, 6)))
    tokens = list(range(1, 21))
    forward(model, [(tokens, 0, 19, range(5))])
    right = forward(model, [(tokens, 19, 20, range(5))])[0]
    assert torch.equal(forward(model, [(tokens, 19, 20, (-1, -1, -1, 3, 4))])[0], right)


def test_a_latent_has_one_part_and_fp8_one_byte() -> None:
    assert VARIANTS["latent"].pool_shape(1).shape == (1, 3, 1, BLOCK * 24)
    assert VARIANTS["fp8"].pool_shape(1).dtype_name == "float8_e4m3fn"
    assert POOLS[VARIANTS["fp8"]].element_size() == 1


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "full"])
def test_every_variant_is_another_model(variant: str) -> None:
    tokens = [(3 * i) % 250 for i in range(20)]
    logits, _ = computed_alone(VARIANTS[variant], tokens)
    assert not torch.equal(logits, computed_alone(MODEL, tokens)[0])
