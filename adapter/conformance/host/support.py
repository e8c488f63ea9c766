"""What this host, or the real one, does not run with a connector; refused at start.

Host contract §11 for the features, §2 for the traps. Must not know: the engine.
Pure function.
"""

from __future__ import annotations

from dataclasses import replace

from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions


def settle(llm_args: LlmArgs, options: HostOptions) -> HostOptions:
    """Check arguments and fold what they say into the options.

    Args:
        llm_args: The engine's arguments.
        options: Version and scheduling switches.

    Returns:
        The options in force.

    Raises:
        ValueError: Naming the argument that is not supported.
    """
    cache = llm_args.kv_cache_config
    refused = {
        "tensor_parallel_size": llm_args.tensor_parallel_size != 1,
        "pipeline_parallel_size": llm_args.pipeline_parallel_size != 1,
        "context_parallel_size": llm_args.context_parallel_size != 1,
        "enable_attention_dp": llm_args.enable_attention_dp,
        "max_beam_width": llm_args.max_beam_width != 1,
        "kv_cache_config.use_kv_cache_manager_v2": cache.use_kv_cache_manager_v2,
        "kv_cache_config.max_attention_window": cache.max_attention_window is not None,
        "kv_cache_config.host_cache_size": bool(cache.host_cache_size),
        "kv_cache_config.disk_cache_size": bool(cache.disk_cache_size),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise ValueError(f"{name}: not supported by the single-rank V1 host")
    if llm_args.max_num_tokens < cache.tokens_per_block:
        raise ValueError(
            f"max_num_tokens is {llm_args.max_num_tokens}, below one block of "
            f"{cache.tokens_per_block} tokens"
        )
    return replace(options, overlap=options.overlap and not llm_args.disable_overlap_scheduler)
