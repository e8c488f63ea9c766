"""Rules about queries: how much may be offered, and when nothing may.

Each check returns a verdict; an engine that dies of the connector's answer is a broken rule, too.
Runs in the kit's main thread.
"""

from __future__ import annotations

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, Bench, Probe, text
from adapter.conformance.kit.verdict import NO_LOAD, Verdict, broken, held, unseen


def leaves_a_token_and_offers_whole_blocks(bench: Bench) -> Verdict:
    """Rule 1: at most ``prompt_len - 1 - num_computed`` tokens, whole blocks."""
    lengths = [blocks * BLOCK + rest for blocks in (1, 2, 3) for rest in (-1, 0, 1)]
    best = 0
    with bench.engine() as seen:
        for number, length in enumerate(lengths):
            prompt = text(length, seed=100 + number)
            seen.store(prompt)
            mark = seen.log.mark()
            seen.store(prompt)
            for _, computed, offered in seen.offers(mark):
                if computed + offered >= length:
                    return broken(f"{offered} tokens behind {computed} of a prompt of {length}")
                if offered % BLOCK:
                    return broken(f"{offered} tokens are no whole blocks of {BLOCK}")
                best = max(best, offered)
    if not best:
        return unseen(NO_LOAD)
    return held(f"{len(lengths)} lengths around block multiples, up to {best} tokens offered")


def declines_a_match_inside_a_block(bench: Bench) -> Verdict:
    """Rule 2: nothing is offered when ``num_computed`` is no block multiple."""
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=True)
    prompt = text(4 * BLOCK + 1, seed=1)
    with bench.engine(cache=cache) as seen:
        seen.store(prompt)
        seen.ask([*prompt[: BLOCK + 5], *text(2 * BLOCK, seed=2)])
        mark = seen.log.mark()
        seen.ask(prompt)
        matches = seen.offers(mark)
        seen.host.forget_reuse(SETTLE_S)
        again = seen.ask(prompt)
    ragged = [offer for offer in matches if offer[1] % BLOCK]
    if not ragged:
        return unseen(f"the host never matched inside a block: {matches}")
    if any(offered for _, _, offered in ragged):
        return broken(f"offered behind a match inside a block: {ragged}")
    if not again.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"match of {ragged[0][1]} tokens, nothing offered")


def offers_nothing_without_reuse(bench: Bench) -> Verdict:
    """Rule 15: with block reuse off, E3 asks and computes everything all the same."""
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_block_reuse=False)
    prompt = text(3 * BLOCK + 1, seed=3)
    with bench.engine() as seen:
        seen.store(prompt)
        again = seen.ask(prompt)
    with bench.engine(HostOptions(epoch="E3"), cache=cache) as seen:
        seen.ask(prompt)
        offers = seen.offers()
    if not offers:
        return unseen("the host did not ask")
    if any(offered for _, _, offered in offers):
        return broken(f"offered with block reuse off: {offers}")
    if not again.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{len(offers)} queries, nothing offered of what is offered with reuse on")


def answers_a_repeated_query_alike(bench: Bench) -> Verdict:
    """§3: the same request may be asked about again, and then never be allocated."""
    probe, prompt = Probe(), text(3 * BLOCK + 1, seed=4)
    answers: list[tuple[int, bool]] = []
    with bench.engine(HostOptions(probe=probe)) as seen:
        seen.store(prompt)
        request = _Asked(1 << 40, prompt)

        def ask_thrice() -> None:  # on the executor's thread, as the host does
            query = seen.host.connector.scheduler.get_num_new_matched_tokens
            answers.extend(query(request, 0) for _ in range(3))

        probe.once("launched", ask_thrice)
        seen.ask(text(BLOCK, seed=6))
        result = seen.ask(prompt)
    if len(set(answers)) > 1:
        return broken(f"three answers to one question: {answers}")
    if not answers or not answers[0][0] or not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{answers[0][0]} tokens three times; a later request loaded all the same")


class _Asked:
    """A request as the V1 query shows it."""

    def __init__(self, request_id: int, tokens: list[int]) -> None:
        self.request_id = request_id
        self._tokens = tokens
        self.lora_task_id = None
        self.cache_salt = None
        self.multimodal_hashes = None
        self.multimodal_positions = None
        self.multimodal_lengths = None
        self.is_generation_only_request = False
        self.kv_cache_retention_config = None

    def get_tokens(self, beam: int) -> list[int]:
        return list(self._tokens)


def keeps_tenants_apart(bench: Bench) -> Verdict:
    """§8: another salt or LoRA adapter never gets what this one stored."""
    prompt = text(3 * BLOCK + 1, seed=5)
    with bench.engine() as seen:
        seen.store(prompt, cache_salt="one")
        again = seen.store(prompt, cache_salt="one")
        others = [
            seen.store(prompt, cache_salt="two"),
            seen.store(prompt),
            seen.store(prompt, cache_salt="one", lora_task_id=1),
        ]
    leaked = [result.num_loaded_tokens for result in others]
    if any(leaked):
        return broken(f"tokens loaded across salt, no salt, LoRA: {leaked}")
    if not again.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{again.num_loaded_tokens} tokens for the same tenant, none for three others")
