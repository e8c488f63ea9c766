"""What this host, or the real one, does not run with a connector; refused at start.

Host contract §11 for the features, §2 for the traps. Must not know: the engine.
Pure function.
"""

from __future__ import annotations

from dataclasses import replace

from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions


def settle(llm_args: LlmArgs, options: HostOptions, num_ranks: int = 1) -> HostOptions:
    """Check arguments and fold what they say into the options.

    Args:
        llm_args: The engine's arguments.
        options: Version and scheduling switches.
        num_ranks: Processes of the job.

    Returns:
        The options in force.

    Raises:
        ValueError: Naming the argument that is not supported.
    """
    connector = llm_args.kv_connector_config
    aggressive = bool(getattr(connector, "aggressive_prefix_budgeting", False))
    cache, is_v2 = llm_args.kv_cache_config, options.layout == "v2"
    is_late = options.epoch in ("E3", "E4")
    refused = {
        "tensor_parallel_size": llm_args.tensor_parallel_size != num_ranks,
        "pipeline_parallel_size": llm_args.pipeline_parallel_size != 1,
        "context_parallel_size": llm_args.context_parallel_size != 1,
        "enable_attention_dp": llm_args.enable_attention_dp and not is_late,
        "max_beam_width": llm_args.max_beam_width != 1,
        "kv_cache_config.use_kv_cache_manager_v2": cache.use_kv_cache_manager_v2 and not is_v2,
        "kv_cache_config.max_attention_window": cache.max_attention_window is not None
        and not is_v2,
        "speculative_config": _has_draft_model(llm_args.speculative_config),
        "num_drafts": bool(options.num_drafts) and (is_v2 or options.epoch == "E1"),
        "one_call_more": options.one_call_more and options.epoch != "E1",
        "aggressive_prefix_budgeting": (aggressive or options.aggressive)
        and (options.epoch != "E4" or not is_v2),
        "direct_preemption": options.direct_preemption and options.epoch != "E4",
        "layout": is_v2 and not is_late,
        "kv_cache_config.enable_block_reuse": is_v2 and not cache.enable_block_reuse,
        "kv_cache_config.host_cache_size": bool(cache.host_cache_size),
        "kv_cache_config.disk_cache_size": bool(cache.disk_cache_size),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise ValueError(
                f"{name}: not supported by this host in {options.epoch} ({options.layout})"
            )
    if llm_args.max_num_tokens < cache.tokens_per_block:
        raise ValueError(
            f"max_num_tokens is {llm_args.max_num_tokens}, below one block of "
            f"{cache.tokens_per_block} tokens"
        )
    overlap = options.overlap and not llm_args.disable_overlap_scheduler
    once_more = options.one_call_more and overlap
    return replace(options, overlap=overlap, one_call_more=once_more, aggressive=aggressive)


def _has_draft_model(speculative: object | None) -> bool:
    # Drafts of the model itself name none (host contract §11).
    names = ("speculative_model", "speculative_model_dir")
    return any(getattr(speculative, name, None) for name in names)
