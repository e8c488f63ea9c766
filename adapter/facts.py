"""From the host's request object to what the cache must know of it.

Purpose: tokens, and everything else that decides whether two requests may share KV: salt, LoRA,
media. What is not understood bypasses the cache. Must not know: sockets, pages. Runs in: the
executor's thread, inside queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from adapter.requeststate import RequestFacts
from adapter.trtllm_api import cache_salt_of, is_generation_only, lora_id_of, multimodal_items_of
from protocol.errors import KvkeepError
from protocol.ids import InstanceId
from protocol.keys import MediaItem, ReuseScope

#: Inputs besides tokens that change KV and carry no digest.
_OPAQUE_INPUTS: Final = ("prompt_embedding_table", "input_token_extra_ids", "encoder_tokens")
_EMBEDDED_MEDIA: Final = ("multimodal_embedding", "mrope_rotary_cos_sin")


def facts_of(request: Any, lora_digests: Mapping[int, bytes], instance: InstanceId) -> RequestFacts:
    """Reads a request of the host.

    Args:
        request: the C++ request of the V1 query. Source: host contract §3.
        lora_digests: LoRA task id to content digest.
        instance: this engine; joins the scope of adapters without a digest (P09).

    Returns:
        Its facts; ``scope`` is None for requests that bypass the cache.
    """
    request_id, tokens = int(request.request_id), list(request.get_tokens(0))
    why = _why_bypassed(request)
    if why:
        return RequestFacts(request_id, tokens, None, (), why)
    items = multimodal_items_of(request)
    if items is not None and not items.has_hashes:
        return RequestFacts(request_id, tokens, None, (), "media without digests")
    media: tuple[MediaItem, ...] = ()
    if items is not None:
        pairs = sorted(zip(items.positions, items.hashes, strict=True))
        media = tuple(MediaItem(position, digest) for position, digest in pairs)
    try:
        scope = scope_of(request, lora_digests, instance)
    except (TypeError, ValueError, KvkeepError) as error:
        return RequestFacts(request_id, tokens, None, (), f"scope not understood: {error}")
    return RequestFacts(request_id, tokens, scope, media)


def scope_of(request: Any, lora_digests: Mapping[int, bytes], instance: InstanceId) -> ReuseScope:
    """The reuse scope of a request: salt and LoRA adapter.

    Args:
        request: the host's request.
        lora_digests: LoRA task id to content digest.
        instance: this engine.

    Raises:
        TypeError: a salt of an unknown type.
    """
    salt, lora = cache_salt_of(request), lora_id_of(request)
    if lora is None:
        return ReuseScope(cache_salt=salt)
    if lora in lora_digests:
        return ReuseScope(cache_salt=salt, lora_digest=lora_digests[lora])
    return ReuseScope(cache_salt=salt, lora_local_id=lora, instance=instance)


def _why_bypassed(request: Any) -> str:
    if is_generation_only(request):
        return "generation-only request"
    for name in _OPAQUE_INPUTS:
        if getattr(request, name, None) is not None:
            return f"{name} has no digest"
    has_digests = bool(getattr(request, "multimodal_hashes", None))
    for name in _EMBEDDED_MEDIA:
        if getattr(request, name, None) is not None and not has_digests:
            return f"{name} without media digests"
    return ""
