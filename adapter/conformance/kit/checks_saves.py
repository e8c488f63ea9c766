"""Rules about saves: what may be stored, and what is owed to the host for it.

What was stored is judged by what a later request loads: its logits tell a page that was saved too
early, or after it was recycled. Runs in the kit's main thread.
"""

from __future__ import annotations

import time
from typing import Final

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, Bench, same, text
from adapter.conformance.kit.verdict import (
    NO_KEEPING,
    NO_LOAD,
    Verdict,
    broken,
    held,
    unseen,
)

_IDLE_S: Final = 1.0
_TRIES: Final = 3
"""With other texts: a busy machine may have a connector miss once."""


def saves_only_what_was_computed(bench: Bench) -> Verdict:
    """Rule 6: with chunked prefill, pages are reported long before they are computed."""
    prompt = text(7 * BLOCK + 1, seed=40)
    wanted = bench.expected(prompt, 2)
    with bench.engine(max_num_tokens=2 * BLOCK) as seen:
        seen.store(prompt)
        reports = seen.log.of("build_connector_meta")
        result = seen.ask(prompt, 2)
    if not same(result, wanted):
        return broken("a prompt computed in chunks was stored wrongly: logits differ")
    if not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{len(reports)} iterations, {result.num_loaded_tokens} tokens stored and loaded")


def saves_what_is_generated(bench: Bench) -> Verdict:
    """Rule 7: generated blocks and later chunks are in ``cached_requests`` alone."""
    loaded = length = 0
    with bench.engine() as seen:
        for seed in range(410, 410 + _TRIES):
            prompt = text(BLOCK + 1, seed=seed)
            answer = seen.store(prompt, 2 * BLOCK + 4).tokens
            talk = prompt + answer + text(3, seed=seed + 10)
            result = seen.ask(talk, 2)
            if not same(result, bench.expected(talk, 2)):
                return broken("generated blocks were stored wrongly: logits differ")
            loaded, length = result.num_loaded_tokens, len(prompt)
            if loaded > length:
                return held(f"{loaded} tokens of a second turn loaded")
    if not loaded:
        return unseen(NO_LOAD)
    return broken(
        f"{loaded} tokens of a second turn were loaded, the first prompt had {length}: generated "
        f"blocks are not stored"
    )


def saves_what_follows_a_ragged_match(bench: Bench) -> Verdict:
    """§12 row 8: a match inside a block forbids the load, not the save."""
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=True)
    loaded = 0
    with bench.engine(cache=cache) as seen:
        for seed in range(430, 430 + _TRIES):
            first = text(2 * BLOCK + 1, seed=seed)
            second = [*first[: BLOCK + 7], *text(2 * BLOCK, seed=seed + 10)]
            seen.ask(first)
            mark = seen.log.mark()
            seen.store(second)
            ragged = [computed for _, computed, _ in seen.offers(mark) if computed % BLOCK]
            result = seen.ask(second, 2)
            if not ragged:
                return unseen("the host did not match inside a block")
            if not same(result, bench.expected(second, 2)):
                return broken("logits differ after a match inside a block")
            loaded = result.num_loaded_tokens
            if loaded > BLOCK:  # the first block is the first prompt's, too
                return held(f"match of {ragged[0]} tokens, {loaded} tokens stored")
    if not loaded:
        return unseen(NO_LOAD)
    return broken("what was computed behind a match inside a block was not stored")


def gives_every_page_back(bench: Bench) -> Verdict:
    """Rule 9: True at most once per id, and each id reported once, on every rank."""
    prompts = [text(2 * BLOCK + 1, seed=200 + number) for number in range(6)]
    # A stop token under overlap: the request is scanned a second time (host contract §6).
    stops = [bench.expected(prompt, 3).tokens[number % 3] for number, prompt in enumerate(prompts)]
    with bench.engine(num_blocks=32) as seen:
        for prompt, stop in zip(prompts, stops, strict=True):
            seen.ask(prompt, 8, stop_ids=[stop])
        seen.host.forget_reuse(SETTLE_S)
        stats = seen.host.stats()
        kept = [c.request_id for c in seen.log.of("request_finished") if c.answer is True]
        reported = [i for c in seen.log.of("get_finished") if c.answer for i in c.answer[0]]
    if len(set(kept)) < len(kept):
        return broken(f"request_finished answered True twice for {_twice(kept)}")
    if sorted(kept) != sorted(reported):
        return broken(f"pages of {sorted(set(kept) ^ set(reported))} were not given back")
    if stats.num_available_blocks != seen.host.num_pages:
        return broken(f"{seen.host.num_pages - stats.num_available_blocks} pages are lost")
    if not kept:
        return unseen(NO_KEEPING)
    return held(f"{len(kept)} requests kept their pages and gave each back once")


def outlives_an_idle_executor(bench: Bench) -> Verdict:
    """§5: with nothing to do a host blocks and polls nobody: pages stay held until it is asked."""
    prompts = [text(3 * BLOCK + 1, seed=470 + number) for number in range(2)]
    wanted = [bench.expected(prompt, 2) for prompt in prompts]
    with bench.engine() as seen:
        seen.ask(prompts[0], 2)
        polls = len(seen.log.of("get_finished"))
        time.sleep(_IDLE_S)
        between = len(seen.log.of("get_finished")) - polls
        seen.store(prompts[1], 2)
        results = [seen.ask(prompt, 2) for prompt in prompts]
        seen.host.forget_reuse(SETTLE_S)
        lost = seen.host.num_pages - seen.host.stats().num_available_blocks
        kept = sum(call.answer is True for call in seen.log.of("request_finished"))
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken("logits differ after the executor was idle")
    if lost:
        return broken(f"{lost} pages are lost")
    if not kept:
        return unseen(NO_KEEPING)
    if not results[0].num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(
        f"idle for {_IDLE_S:.0f} s, polled {between} times meanwhile, {kept} requests kept pages, "
        f"{results[0].num_loaded_tokens} tokens loaded afterwards"
    )


def _twice(ids: list[int]) -> list[int]:
    return sorted({one for one in ids if ids.count(one) > 1})


def survives_recycled_pages(bench: Bench) -> Verdict:
    """Rule 9, §5 "Freed pages": a page freed in one iteration is written in the next."""
    prompts = [text(3 * BLOCK + 1, seed=60 + number) for number in range(8)]
    with bench.engine(num_blocks=8) as seen:
        for _ in range(2):
            for prompt in prompts:
                seen.ask(prompt, 2)
        seen.host.forget_reuse(SETTLE_S)
        results = [(prompt, seen.ask(prompt, 2)) for prompt in prompts]
    wrong = [
        number
        for number, (prompt, result) in enumerate(results)
        if not same(result, bench.expected(prompt, 2))
    ]
    if wrong:
        return broken(f"prompts {wrong} of 8 loaded another's pages")
    loaded = sum(result.num_loaded_tokens for _, result in results)
    if not loaded:
        return unseen(NO_LOAD)
    return held(f"8 prompts through 8 pages, {loaded} tokens loaded, equal bits")


def forgets_what_is_cancelled(bench: Bench) -> Verdict:
    """Rule 12: late E2 and E3 end requests without a callback; ids and pages go on."""
    prompt = text(3 * BLOCK + 1, seed=46)
    wanted = bench.expected(prompt, 2)
    with bench.engine(HostOptions(epoch="E3"), num_blocks=32) as seen:
        for number in range(6):
            handle = seen.host.submit([*prompt, number + 1], 40)
            seen.host.cancel(handle)
        seen.host.forget_reuse(SETTLE_S)
        result = seen.store(prompt, 2)
        again = seen.store(prompt, 2)  # and its pages may be held until it is saved
        lost = seen.host.num_pages - seen.host.stats().num_available_blocks
    if not (same(result, wanted) and same(again, wanted)):
        return broken("logits differ after cancelled requests")
    if lost:
        return broken(f"{lost} pages are lost")
    if not again.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held("6 requests cancelled, no page lost, equal bits afterwards")
