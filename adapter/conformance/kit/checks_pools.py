"""Rules about pools: their shape says what a page is, and some cannot be exported.

Runs in the kit's main thread.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.weights import LATENT, ModelConfig
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.conformance.kit.verdict import NO_LOAD, Verdict, broken, held, unseen

_POOLS: Final[tuple[tuple[str, ModelConfig | None, HostOptions, dict[str, Any]], ...]] = (
    ("one latent in place of K and V", LATENT, HostOptions(), {}),
    ("1-byte elements", None, HostOptions(), {"dtype": "fp8"}),
    ("blocks of 32", None, HostOptions(), {"tokens_per_block": 32}),
    ("blocks of 64, 32 by the arguments", None, HostOptions(tokens_per_block=64), {
        "tokens_per_block": 32
    }),
)  # fmt: skip
_DRAFTS: Final = 2


def reads_the_shape_of_its_pool(bench: Bench) -> Verdict:
    """§2, §7, §12 row 14: K and V, heads, element and block size are the pool's to say."""
    told: list[str] = []
    for number, (name, config, options, changes) in enumerate(_POOLS):
        size = options.tokens_per_block or changes.get("tokens_per_block", BLOCK)
        prompt = text(3 * int(size) + 1, seed=2200 + number)
        cache = _cache(**changes)
        wanted = bench.expected(prompt, 2, config, cache=cache, options=options)
        with bench.engine(options, config=config, cache=cache) as seen:
            first = seen.store(prompt, 2)
            result = seen.ask(prompt, 2)
        if not (same(first, wanted) and same(result, wanted)):
            return broken(f"logits differ: {name}")
        if result.num_loaded_tokens:
            told.append(name)
    if not told:
        return unseen(NO_LOAD)
    return held(f"equal bits in all {len(_POOLS)}, loaded: {'; '.join(told)}")


def takes_pools_it_cannot_export(bench: Bench) -> Verdict:
    """§7, §12 row 13: managed memory and V2's are staged or refused, never a dead engine."""
    prompt = text(3 * BLOCK + 1, seed=2210)
    wanted = bench.expected(prompt, 2)
    kinds = {"managed memory (V1)": (HostOptions(private_pool=True), _cache(use_uvm=True))}
    if bench.takes_layouts():
        kinds["V2's virtual memory"] = (
            HostOptions(epoch="E3", layout="v2", private_pool=True),
            _cache(use_kv_cache_manager_v2=True),
        )
    told: dict[str, int] = {}
    for name, (options, cache) in kinds.items():
        with bench.engine(options, cache=cache) as seen:
            first = seen.store(prompt, 2)
            result = seen.ask(prompt, 2)
        if not (same(first, wanted) and same(result, wanted)):
            return broken(f"logits differ: {name}")
        told[name] = result.num_loaded_tokens
    return held(f"served, equal bits; tokens loaded: {told}")


def saves_no_rejected_drafts(bench: Bench) -> Verdict:
    """§3: ``1 + drafts`` are reported; the KV of those that are rejected is another token's."""
    speculative = SimpleNamespace(decoding_type="MTP", num_nextn_predict_layers=_DRAFTS)
    prompt = text(BLOCK + 1, seed=2220)
    with bench.engine(HostOptions(num_drafts=_DRAFTS), speculative_config=speculative) as seen:
        answer = seen.store(prompt, 3 * BLOCK).tokens
        talk = [*prompt, *answer, *text(3, seed=2221)]
        result = seen.ask(talk, 2)
    if answer != bench.expected(prompt, 3 * BLOCK).tokens:
        return broken("tokens differ with draft tokens")
    if not same(result, bench.expected(talk, 2)):
        return broken("logits differ after an answer with draft tokens was stored")
    if not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{result.num_loaded_tokens} tokens of a second turn loaded, equal bits")


def _cache(**changes: object) -> KvCacheConfig:
    settings: dict[str, object] = {"tokens_per_block": BLOCK, "enable_partial_reuse": False}
    return KvCacheConfig(**(settings | changes))  # type: ignore[arg-type]
