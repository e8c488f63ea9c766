"""The second cache manager's layout, read by duck typing into the common description.

Each layer group has a page table of its own; its pages lie in one or more strided regions of
memory (host contract §7, V2). What the description leaves open is refused with one line. Must not
know: the engine's arguments, sockets. Runs in: the main thread, at pool registration.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from adapter.pagememory import Export, GroupPages, LayerSlice, PageMemory
from adapter.pages import SharedPool, find_pool
from adapter.poolshape import CacheShape, GroupShape, Span, memory_of
from adapter.refusals import UncachedError
from protocol import limits
from protocol.device.interface import Device
from protocol.layout import Region

_KEY, _VALUE, _SCALE = "key", "value", "scale"
_NO_LAYERS: Final[Mapping[int, tuple[LayerSlice, ...]]] = {}


@dataclass(frozen=True)
class _Buffer:
    """One layer's K or V (or another role) within a region's parts."""

    layer: int
    role: str
    expansion: int


@dataclass(frozen=True)
class _Strip:
    """One region, checked."""

    base: int
    size: int
    stride: int
    num_slots: int
    buffers: tuple[_Buffer, ...]
    is_replicated: bool

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where its parts lie."""
        return self.base, self.size, self.stride, self.num_slots

    @property
    def end(self) -> int:
        """Address behind the last part."""
        return self.base + self.stride * (self.num_slots - 1) + self.size


@dataclass(frozen=True)
class _Group:
    """One layer group, checked."""

    layers: tuple[int, ...]
    window: int
    strips: tuple[_Strip, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all regions."""
        return sum(strip.size for strip in self.strips)


def read_layout(layout: Any) -> tuple[CacheShape, PageMemory]:
    """A V2 cache: its description and its bytes.

    Args:
        layout: has ``tokens_per_block`` and ``groups``. Source: host contract §7.

    Returns:
        The description, and memory that the server can map itself if all regions lie in one shared
        pool.

    Raises:
        UncachedError: what is not understood, or memory that this process cannot reach.
    """
    try:
        return _read(layout)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UncachedError(f"the layout is not understood: {error!r}") from error


def _read(layout: Any) -> tuple[CacheShape, PageMemory]:
    tokens_per_block = _whole(layout, "tokens_per_block", "the layout")
    if tokens_per_block > limits.MAX_TOKENS_PER_BLOCK:
        raise UncachedError(f"blocks of {tokens_per_block} tokens are too large")
    groups = _groups(layout, tokens_per_block)
    dtype = getattr(layout, "dtype", None)
    roles = {buffer.role for group in groups for strip in group.strips for buffer in strip.buffers}
    shape = CacheShape(
        groups=tuple(
            GroupShape(
                layers=group.layers,
                num_pages=group.strips[0].num_slots,
                page_bytes=group.page_bytes,
                window_tokens=group.window,
                is_replicated=all(strip.is_replicated for strip in group.strips),
            )
            for group in groups
        ),
        dtype="" if dtype is None else str(dtype).rpartition(".")[2],
        kv_factor=2 if _VALUE in roles else int(roles == {_KEY}),
        layout=_fingerprint(groups),
        tokens_per_block=tokens_per_block,
        pools=_pools(groups),
        has_scales=all(_has_scales(group) for group in groups),
    )
    return shape, _memory(layout, groups)


def _groups(layout: Any, tokens_per_block: int) -> tuple[_Group, ...]:
    given = sorted(_items(layout, "groups"), key=lambda group: operator.index(group.layer_group_id))
    if not 1 <= len(given) <= limits.MAX_GROUPS:
        raise UncachedError(f"the layout has {len(given)} layer groups")
    # The reports' lists are in this order (host contract §3, §7).
    if [operator.index(group.layer_group_id) for group in given] != list(range(len(given))):
        raise UncachedError("the layout's layer groups are not numbered from 0 without gaps")
    groups = tuple(_group(group, tokens_per_block) for group in given)
    num_regions = sum(len(group.strips) for group in groups)
    if num_regions > limits.MAX_REGIONS:
        raise UncachedError(f"the layout has {num_regions} regions: too many")
    counts = Counter(layer for group in groups for layer in group.layers)
    twice = sorted(layer for layer, count in counts.items() if count > 1)
    if twice:
        raise UncachedError(
            f"layers {twice[:8]} are in several groups (virtual attention layers), which is not "
            "supported"
        )
    return groups


def _group(group: Any, tokens_per_block: int) -> _Group:
    name = f"layer group {int(group.layer_group_id)}"
    own = getattr(group, "tokens_per_block", None)
    if own is not None and int(own) != tokens_per_block:
        raise UncachedError(f"{name} has blocks of {own} tokens, others of {tokens_per_block}")
    layers = tuple(operator.index(layer) for layer in _items(group, "layer_ids"))
    is_numbered = all(0 <= layer <= limits.MAX_U32 for layer in layers)
    if not (1 <= len(layers) <= limits.MAX_LAYERS and is_numbered):
        raise UncachedError(
            f"{name} has no layers, too many, or numbers that are none: {list(layers)[:8]}"
        )
    window = operator.index(getattr(group, "window_size", None) or 0)
    if not 0 <= window <= limits.MAX_U32:
        raise UncachedError(f"{name} has a window of {window} tokens")
    given = getattr(group, "replicated_regions", None) or ()
    replicated = [_strip(region, name, True) for region in given]
    # Where these are named among all regions as well, their bytes are there once.
    places = {strip.place for strip in replicated}
    strips = [_strip(region, name, False) for region in _items(group, "regions")]
    strips = [strip for strip in strips if strip.place not in places] + replicated
    if not 1 <= len(strips) <= limits.MAX_REGIONS:
        raise UncachedError(f"{name} has {len(strips)} regions")
    if len({strip.num_slots for strip in strips}) > 1:
        raise UncachedError(f"the regions of {name} differ in their number of pages")
    found = _Group(layers, window, tuple(strips))
    if found.page_bytes > limits.MAX_PAGE_BYTES or strips[0].num_slots > limits.MAX_PAGES:
        raise UncachedError(
            f"{name} has {strips[0].num_slots} pages of {found.page_bytes} bytes: too large"
        )
    return found


def _strip(region: Any, name: str, is_replicated: bool) -> _Strip:
    strip = _Strip(
        base=_whole(region, "base", name),
        size=_whole(region, "size", name),
        stride=_whole(region, "stride", name),
        num_slots=_whole(region, "num_slots", name),
        buffers=tuple(_buffer(buffer, name) for buffer in getattr(region, "buffers", None) or ()),
        is_replicated=is_replicated,
    )
    if strip.size > strip.stride:
        raise UncachedError(f"a region of {name} has parts of {strip.size} bytes that overlap")
    return strip


def _buffer(buffer: Any, name: str) -> _Buffer:
    """A ``(layer_id, role, expansion)`` as a tuple or with these attributes."""
    try:
        if isinstance(buffer, Sequence):
            layer, role, expansion = (*buffer, 1)[:3]
        else:
            layer, role, expansion = buffer.layer_id, buffer.role, getattr(buffer, "expansion", 1)
        text = str(getattr(role, "value", role)).rpartition(".")[2].lower()
        return _Buffer(operator.index(layer), text, operator.index(expansion))
    except (TypeError, ValueError, AttributeError) as error:
        raise UncachedError(f"a buffer of {name} is not understood: {error!r}") from error


def _has_scales(group: _Group) -> bool:
    """Whether a buffer for scales goes with each layer's keys, and with its values if it has some.

    Scales of keys alone do not tell where those of the values are.
    """
    roles: dict[int, set[str]] = {layer: set() for layer in group.layers}
    for strip in group.strips:
        for buffer in strip.buffers:
            roles.setdefault(buffer.layer, set()).add(buffer.role)
    return all(_KEY in found and _are_scaled(found) for found in roles.values())


def _are_scaled(roles: Iterable[str]) -> bool:
    scales = [role for role in roles if _SCALE in role]
    return all(
        any(kind in scale for scale in scales) for kind in {_KEY, _VALUE}.intersection(roles)
    )


def _pools(groups: Sequence[_Group]) -> tuple[int, ...]:
    """For each group the number of the pool its pages are from.

    Groups whose pages have equal sizes may take them from one pool: page n of one is page n of the
    other then, and belongs to one of them at a time. Any other overlap is refused.
    """
    pools = list(range(len(groups)))
    placed = [(index, strip) for index, group in enumerate(groups) for strip in group.strips]
    placed.sort(key=lambda pair: pair[1].base)
    for at, (one, first) in enumerate(placed):
        for other, second in placed[at + 1 :]:
            if second.base >= first.end:
                break  # and so do all that follow
            shifts = _meetings(first, second)
            if shifts == [0] and one != other and first.num_slots == second.num_slots:
                gone, kept = sorted((pools[one], pools[other]), reverse=True)
                pools = [kept if pool == gone else pool for pool in pools]
            elif shifts != []:
                raise UncachedError(
                    f"regions of layer group{'' if one == other else 's'} "
                    f"{' and '.join(map(str, sorted({one, other})))} overlap"
                )
    return tuple(pools)


def _meetings(first: _Strip, second: _Strip) -> list[int] | None:
    """How much higher the number of a page in ``first`` is than that of one in the same bytes.

    Args:
        first: begins at or before the other.
        second: the other.

    Returns:
        At most two shifts; none for regions that only interleave. None when strides differ, in
        which case nothing is known.
    """
    stride = first.stride
    if stride != second.stride:
        return None
    shift, behind = divmod(second.base - first.base, stride)
    both = ((shift, behind < first.size), (shift + 1, stride - behind < second.size))
    return [by for by, is_hit in both if is_hit and by < first.num_slots]


def _fingerprint(groups: Iterable[_Group]) -> str:
    """What of the layout decides where a byte of a page belongs; not where pages lie."""
    parts = [
        [
            [strip.size, strip.is_replicated, [[b.layer, b.role, b.expansion] for b in buffers]]
            for strip in group.strips
            for buffers in (strip.buffers,)
        ]
        for group in groups
    ]
    return f"v2 sha256:{sha256(json.dumps(parts).encode()).hexdigest()}"


# --- bytes -------------------------------------------------------------------------------------


def _memory(layout: Any, groups: Sequence[_Group]) -> PageMemory:
    strips = [strip for group in groups for strip in group.strips]
    begin = min(strip.base for strip in strips)
    end = max(strip.end for strip in strips)
    device = getattr(layout, "device", "")
    device = str(getattr(device, "type", device) or "")
    shared = find_pool(begin, end - begin) if device in ("cpu", "") else None
    pages, spans = [], []
    for group in groups:
        own = [
            memory_of(strip.base, strip.end - strip.base, device, layout) for strip in group.strips
        ]
        spans += own
        both = zip(own, group.strips, strict=True)
        parts = tuple(span.part(strip.size, strip.stride) for span, strip in both)
        pages.append(GroupPages(parts, group.strips[0].num_slots))
    owner = _owner(spans)
    export = None if shared is None else _export(shared, groups)
    why = next((span.why_private for span in spans if span.why_private), "")
    if export is not None or owner is not None:
        why = ""
    elif not why:
        why = "its regions lie in several shared pools"
    keep = (layout, shared)
    return PageMemory(tuple(pages), export, why, _layers(groups), keep, owner)


def _owner(spans: Iterable[Span]) -> Device | None:
    """The one device of all regions; None when they are host memory."""
    owners = {None if span.device is None else span.device.uuid: span.device for span in spans}
    if len(owners) > 1:
        raise UncachedError("the layout's regions lie on several devices")
    return next(iter(owners.values()))


def _export(pool: SharedPool, groups: Sequence[_Group]) -> Export:
    return Export(
        pool.fd,
        pool.num_bytes,
        tuple(
            tuple(
                Region(
                    offset_bytes=strip.base - pool.address,
                    size_bytes=strip.size,
                    stride_bytes=strip.stride,
                )
                for strip in group.strips
            )
            for group in groups
        ),
    )


def _layers(groups: Sequence[_Group]) -> Mapping[int, tuple[LayerSlice, ...]]:
    """Where each layer's K and V lie in a page, if the buffers say so beyond doubt, else empty."""
    found: dict[int, list[LayerSlice]] = {}
    for index, group in enumerate(groups):
        begin = 0
        for strip in group.strips:
            size, rest = divmod(strip.size, max(1, len(strip.buffers)))
            is_plain = {buffer.role for buffer in strip.buffers} <= {_KEY, _VALUE}
            is_even = rest == 0 and len({buffer.expansion for buffer in strip.buffers}) == 1
            if not (is_plain and is_even):
                return _NO_LAYERS
            for at, buffer in enumerate(strip.buffers):
                if buffer.layer not in group.layers:
                    return _NO_LAYERS
                piece = LayerSlice(index, begin + at * size, size)
                found.setdefault(buffer.layer, []).append(piece)
            begin += strip.size
        if any(layer not in found for layer in group.layers):
            return _NO_LAYERS
    return {layer: tuple(pieces) for layer, pieces in found.items()}


def _items(owner: Any, name: str) -> list[Any]:
    value = getattr(owner, name, None)
    if value is None:
        raise UncachedError(f"the layout has no {name}")
    return list(value.values() if isinstance(value, Mapping) else value)


def _whole(owner: Any, name: str, what: str) -> int:
    value: Any = getattr(owner, name, None)
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise UncachedError(f"{what}: {name} is {value!r}, a positive whole number is needed")
    return int(value)
