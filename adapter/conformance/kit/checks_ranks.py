"""Rules about engines of several ranks: tensor parallel and attention data parallel.

Each rank is a process with the connector's classes in it, found by module name. Answers are
compared with those of an engine of the same degree without a cache. Runs in the kit's main thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Final

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostResult
from adapter.conformance.host.weights import TINY
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, WAIT_S, Bench, same, text
from adapter.conformance.kit.ranked import SIZE, Ranks
from adapter.conformance.kit.verdict import (
    NO_ADP,
    NO_ASYNC,
    NO_LOAD,
    NO_SERVER,
    Verdict,
    broken,
    held,
    unseen,
)

_FEW_HEADS: Final = replace(TINY, num_key_value_heads=1)
_V2: Final = KvCacheConfig(
    tokens_per_block=BLOCK, enable_partial_reuse=False, use_kv_cache_manager_v2=True
)


def hits_only_what_every_rank_holds(bench: Bench) -> Verdict:
    """§8, §12 row 16: a block that one rank never saved is no hit, and no garbage."""
    whole, torn = text(4 * BLOCK + 1, seed=1000), text(4 * BLOCK + 1, seed=1001)
    wanted = bench.expected_of_ranks([(whole, 2), (torn, 2)])
    with bench.ranks() as engine:
        if not engine.warm(whole, SETTLE_S):
            return unseen(NO_LOAD)
        engine.die_before_saving(torn, rank=1)
    with bench.ranks() as engine:
        engine.warm(whole, SETTLE_S)
        results = [engine.ask(whole, 2), engine.ask(torn, 2)]
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken("logits differ after one of two ranks died before it saved its part")
    whole_tokens, torn_tokens = (result.num_loaded_tokens for result in results)
    if not whole_tokens:
        return unseen(NO_LOAD)
    return held(
        f"tensor parallel 2, one rank killed before it saved: {torn_tokens} tokens loaded of that, "
        f"{whole_tokens} of what both hold, equal bits"
    )


def loads_what_it_offered_on_every_rank(bench: Bench) -> Verdict:
    """§9 rule 3: an offer is pinned on all shards; a server that dies takes none of it away."""
    service = bench.service
    if service is None:
        return unseen(NO_SERVER)
    prompt = text(4 * BLOCK + 1, seed=1060)
    (wanted,) = bench.expected_of_ranks([(prompt, 3)])
    with bench.ranks() as engine:
        if not engine.warm(prompt, SETTLE_S):
            return unseen(NO_LOAD)
        is_offered = engine.hold_offer()
        handle = engine.submit(prompt, 3)
        was_offered = is_offered(WAIT_S / 4)
        service.kill()
        try:
            engine.let_go()
            result = handle.result(WAIT_S)
        finally:
            service.restart()
    if not same(result, wanted):
        return broken("the server died between offer and load, and the logits of two ranks differ")
    if not was_offered:
        return unseen(NO_LOAD)
    return held(f"two ranks loaded {result.num_loaded_tokens} tokens after kill -9 of the server")


def reports_every_id_on_every_rank(bench: Bench) -> Verdict:
    """§5, §9 rule 9: an id acts only once all ranks have returned it, each exactly once."""
    prompts = [text(3 * BLOCK + 1, seed=1010 + number) for number in range(3)]
    wanted = bench.expected_of_ranks([(prompt, 3) for prompt in prompts])
    results: list[HostResult] = []
    with bench.ranks(HostOptions(epoch="E4"), skewed=True) as engine:
        engine.warm(text(BLOCK + 1, seed=1019), SETTLE_S)
        for _ in range(2):
            handles = [engine.submit(prompt, 3) for prompt in prompts]
            results = [handle.result(WAIT_S) for handle in handles]
            engine.engine.forget_reuse(SETTLE_S)
        finished = engine.log(0, "request_finished")
        polls = [engine.log(rank, "get_finished") for rank in range(SIZE)]
        lost = _lost_pages(engine)
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken("logits differ with two ranks of which one is late")
    begun: Counter[int] = Counter()
    kept = Counter(call.request_id for call in finished if call.answer is True)
    for rank, calls in enumerate(polls):
        saved = Counter(one for call in calls if call.answer for one in call.answer[0])
        loaded = Counter(one for call in calls if call.answer for one in call.answer[1])
        begun = Counter(one for call in calls for one in call.detail[1])
        if saved != kept or loaded != begun:
            return broken(
                f"rank {rank} reported saves {dict(saved)} of {dict(kept)} and loads "
                f"{dict(loaded)} of {dict(begun)}"
            )
    if lost:
        return broken(lost)
    if not kept and not begun:
        return unseen(
            "no request kept its pages and none was loaded asynchronously: nothing to report"
        )
    return held(f"{len(kept)} saves and {len(begun)} loads, each reported once by both ranks")


def shares_heads_between_ranks(bench: Bench) -> Verdict:
    """§7, §12 row 14: with fewer key/value heads than ranks, several ranks hold the same one."""
    prompt = text(4 * BLOCK + 3, seed=1020)
    (wanted,) = bench.expected_of_ranks([(prompt, 3)], _FEW_HEADS)
    with bench.ranks(config=_FEW_HEADS) as engine:
        is_warm = engine.warm(prompt, SETTLE_S)
        result = engine.ask(prompt, 3)
        lost = _lost_pages(engine)
    if not same(result, wanted):
        return broken("logits differ with one key/value head and two ranks")
    if lost:
        return broken(lost)
    if not is_warm or not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"one head on two ranks, {result.num_loaded_tokens} tokens loaded, equal bits")


def keeps_degrees_apart(bench: Bench) -> Verdict:
    """§8: a page of a whole engine is no page of one of its shards."""
    prompt = text(4 * BLOCK + 1, seed=1050)
    (wanted,) = bench.expected_of_ranks([(prompt, 2)])
    with bench.engine() as seen:
        seen.store(prompt)
        alone = seen.ask(prompt)
    with bench.ranks() as engine:
        first = engine.store(prompt, SETTLE_S, 2)
        engine.warm(prompt, SETTLE_S)
        second = engine.ask(prompt, 2)
    if first.num_loaded_tokens:
        return broken(f"two ranks loaded {first.num_loaded_tokens} tokens of what one had stored")
    if not (same(first, wanted) and same(second, wanted)):
        return broken("logits of two ranks differ after an engine of one rank stored the same")
    if not alone.num_loaded_tokens or not second.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(
        f"{alone.num_loaded_tokens} tokens loaded by one rank, none of them by two, then "
        f"{second.num_loaded_tokens} of their own"
    )


def serves_unequal_ranks(bench: Bench) -> Verdict:
    """§5, attention DP: a scheduler per rank, idle ranks whose batches are empty, one key space."""
    if not all(bench.opted_into_attention_dp()):
        return unseen(NO_ADP)
    prompts = [text(3 * BLOCK + 1, seed=1030 + number) for number in range(3)]
    wanted = [bench.expected(prompt, 3) for prompt in prompts]
    with bench.ranks(HostOptions(epoch="E3", layout="v2"), cache=_V2, adp=True) as engine:
        is_warm = [engine.warm(prompts[0], SETTLE_S, rank=rank) for rank in range(SIZE)]
        handles = [engine.submit(prompt, 3, rank=rank) for rank, prompt in zip((0, 0, 1), prompts)]  # noqa: B905
        results = [handle.result(WAIT_S) for handle in handles]
        engine.engine.forget_reuse(SETTLE_S)
        # What one rank stored, the other asks for, while the first has nothing to do.
        results += [engine.ask(prompt, 3, rank=1) for prompt in prompts]
        engine.engine.forget_reuse(SETTLE_S)
        lost = _lost_pages(engine)
    if not all(same(one, other) for one, other in zip(results, wanted * 2, strict=True)):
        return broken("logits differ under attention data parallelism")
    if lost:
        return broken(lost)
    crossed = sum(result.num_loaded_tokens for result in results[3:5])
    if not any(is_warm):
        return unseen(NO_LOAD)
    return held(f"2 ranks, {crossed} tokens loaded by one of what the other stored, equal bits")


def starts_loads_again_in_one_iteration(bench: Bench) -> Verdict:
    """§5, attention DP: a load that leaves no room for a dummy is awaited inside the iteration."""
    if not all(bench.opted_into_attention_dp()):
        return unseen(NO_ADP)
    prompt = text(4 * BLOCK + 1, seed=1040)
    wanted = bench.expected(prompt, 2)
    options = HostOptions(epoch="E4", layout="v2")
    # Five pages, all of them the request's: no dummy fits beside its load.
    with bench.ranks(options, num_blocks=5, cache=_V2, adp=True) as engine:
        if not engine.warm(prompt, SETTLE_S):
            return unseen(NO_LOAD)
        result = engine.ask(prompt, 2)
        engine.engine.forget_reuse(SETTLE_S)
        calls = engine.log(0, "start_load_kv", "wait_for_save")
        loads = engine.log(0, "get_finished")
        lost = _lost_pages(engine)
    if not same(result, wanted):
        return broken("logits differ after a load that was awaited inside an iteration")
    if lost:
        return broken(lost)
    hooks = [call.hook for call in calls]
    again = sum(one == other == "start_load_kv" for one, other in pairwise(hooks))
    if not any(call.detail[1] for call in loads):
        return unseen(NO_ASYNC)
    if not again:
        return unseen("no load had to be awaited inside an iteration")
    return held(f"{again} iterations in which loads were started twice, equal bits")


def _lost_pages(engine: Ranks) -> str:
    for rank in range(SIZE):
        host = engine.engine.stats(rank).host
        if host.num_saving_pages:
            return f"rank {rank} still holds {host.num_saving_pages} pages for saves"
    return ""
