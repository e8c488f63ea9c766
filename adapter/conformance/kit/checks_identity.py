"""Rules about what may be taken for what: media, models, formats, instances of one server.

Runs in the kit's main thread; probes run on the executor's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import Multimodal
from adapter.conformance.host.weights import TINY
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, WAIT_S, Bench, Probe, same, text
from adapter.conformance.kit.verdict import NO_LOAD, Verdict, broken, held, unseen

_OTHER_WEIGHTS: Final = replace(TINY, seed=2)


def keeps_media_apart(bench: Bench) -> Verdict:
    """§8: placeholders are equal tokens; only digests tell media apart, and may be missing."""
    prompt = text(3 * BLOCK + 1, seed=2100)

    def media(digest: int | None) -> Multimodal:
        hashes = None if digest is None else ((digest,) * 8,)
        return Multimodal(hashes, (2,), (BLOCK,))

    with bench.engine() as seen:
        seen.store(prompt, multimodal=media(1))
        again = seen.store(prompt, multimodal=media(1))
        others = [
            seen.store(prompt, multimodal=media(2)),
            seen.store(prompt),
            seen.store(prompt, multimodal=media(None)),
            seen.store(prompt, multimodal=media(None)),
        ]
    leaked = [result.num_loaded_tokens for result in others]
    if any(leaked):
        return broken(
            f"tokens loaded across another picture, none, one without a digest twice: {leaked}"
        )
    if not again.num_loaded_tokens:
        return unseen(f"nothing was loaded for the same picture, which is no breach. {NO_LOAD}")
    return held(f"{again.num_loaded_tokens} tokens for the same picture, none for four others")


def keeps_models_and_formats_apart(bench: Bench) -> Verdict:
    """§8, §12 row 15: other weights, another element type, another block size are other keys."""
    prompt = text(4 * BLOCK + 1, seed=2110)
    wanted = bench.expected(prompt, 2)
    fp8 = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=False, dtype="fp8")
    twice = KvCacheConfig(tokens_per_block=2 * BLOCK, enable_partial_reuse=False)
    with bench.engine() as seen:
        seen.store(prompt)
        again = seen.store(prompt, 2)
    others = []
    for config, cache in ((_OTHER_WEIGHTS, None), (None, fp8), (None, twice)):
        with bench.engine(config=config, cache=cache) as seen:
            others.append(seen.ask(prompt, 2).num_loaded_tokens)
    with bench.engine() as seen:
        last = seen.ask(prompt, 2)
    if any(others[:2]):
        return broken(f"tokens loaded across weights, element types: {others[:2]}")
    if not (same(again, wanted) and same(last, wanted)):
        return broken("logits differ after another model or format used the same server")
    if not again.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(
        f"{again.num_loaded_tokens} tokens for the same model, none for other weights or element "
        f"types, {others[2]} for blocks of {2 * BLOCK}"
    )


def keeps_instances_apart(bench: Bench) -> Verdict:
    """§8, §12 row 11: request ids begin at 1 in every process; one instance ends another's."""
    probe = Probe()
    prompt, other = text(4 * BLOCK + 1, seed=2120), text(3 * BLOCK + 1, seed=2121)
    wanted = [bench.expected(one, 3) for one in (prompt, other)]
    with bench.engine(HostOptions(probe=probe)) as first, bench.engine() as second:
        first.store(prompt, 3)
        second.store(other, 3)
        ids = [seen.log.of("request_finished")[-1].request_id for seen in (first, second)]
        # The other instance's request of the same id begins and ends between offer and load.
        ended: list[object] = []
        probe.once("queried", lambda: ended.append(second.host.submit(other, 3).result(WAIT_S)))
        results = [first.ask(prompt, 3), second.ask(other, 3)]
        first.host.forget_reuse(SETTLE_S)
    if not all(same(one, two) for one, two in zip(results, wanted, strict=True)):
        return broken("logits differ when two instances have requests of equal ids")
    if ids[0] != ids[1] or not ended:
        return unseen(f"ids {ids}, {len(ended)} requests in between. {NO_LOAD}")
    return held(
        f"two requests {ids[0] + 1}: {results[0].num_loaded_tokens} tokens loaded after the other "
        "instance's had ended"
    )
