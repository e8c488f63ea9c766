"""Changes to valid messages: values, names, counts, lengths, bytes.

Every choice comes from the ``random`` that is handed in, so a seed repeats it. Knows the encoding
only. Runs in the fuzzer's process; it is the greater part of an execution's time, so it cuts bytes
and builds no values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz import wire
from tests.fuzz.wire import Template, Token

Random = Callable[[], float]


@dataclass
class Material:
    """What mutations are made of.

    Attributes:
        by_kind: fragments of each kind of value.
        any_kind: all of them.
        keys: field names as encoded keys.
        subtrees: values cut out of other valid messages.
    """

    by_kind: dict[int, list[bytes]]
    any_kind: list[bytes]
    keys: list[bytes]
    subtrees: list[bytes]

    @classmethod
    def of(cls, templates: Sequence[Template], bounds: set[int]) -> Material:
        """Collects material from valid messages.

        Args:
            templates: any number of them.
            bounds: limits worth a try.
        """
        keys, subtrees = set[bytes](), set[bytes]()
        for template in templates:
            for token in template.tokens:
                part = template.data[token.start : token.end]
                if token.is_key:
                    keys.add(part)
                elif 8 < len(part) < 400:
                    subtrees.add(part)
        names = {str(wire.decode(key)) for key in keys}
        by_kind = wire.fragments(bounds, names)
        any_kind = [part for kind in sorted(by_kind) for part in by_kind[kind]]
        return cls(by_kind, any_kind, sorted(keys), sorted(subtrees))


def mutate(random: Random, template: Template, stock: Material) -> bytes:
    """One changed message; every sixteenth is left as it is.

    Args:
        random: uniform in [0, 1).
        template: what to change.
        stock: fragments.
    """
    draw = random()
    if draw < 0.0625:
        return template.data
    at = int(random() * len(template.tokens))
    data = _edit(random, template.data, template, template.tokens[at], stock)
    if draw > 0.75 and at:
        # A second change before the first, so that the places of the first message still hold.
        data = _edit(random, data, template, template.tokens[int(random() * at)], stock)
    return data


def _edit(random: Random, data: bytes, template: Template, token: Token, stock: Material) -> bytes:
    start, _, end, kind, _, _, is_key = token
    choice = random()
    if choice < 0.42:
        if is_key:
            pool = stock.keys
        elif choice < 0.3:
            pool = stock.by_kind[kind]
        elif choice < 0.38:
            pool = stock.any_kind
        else:
            pool = stock.subtrees
        return data[:start] + pool[int(random() * len(pool))] + data[end:]
    if choice < 0.62 and template.entries:
        return _entry(random, data, template, stock)
    if choice < 0.7:
        return _count(random, data, token)
    if choice < 0.76:
        return data[: int(random() * len(data))]
    if choice < 0.8:
        return data[:start] + data[end:]
    if choice < 0.83:
        return data + stock.any_kind[int(random() * len(stock.any_kind))]
    if choice < 0.86:
        return data[:start] + wire.HUGE[int(random() * len(wire.HUGE))] + data[end:]
    return _bytes(random, data)


def _entry(random: Random, data: bytes, template: Template, stock: Material) -> bytes:
    """Takes an entry away, doubles it, or adds one; the count mostly follows."""
    holder, first, last = template.entries[int(random() * len(template.entries))]
    choice, step, middle = random(), 1, b""
    if choice < 0.5:
        step, rest = -1, data[last:]
    elif choice < 0.75:
        middle, rest = data[first:last], data[first:]
    else:
        key = stock.keys[int(random() * len(stock.keys))] if holder.kind == wire.MAP else b""
        middle = key + stock.any_kind[int(random() * len(stock.any_kind))]
        rest = data[first:]
    if random() < 0.1:
        step = 0
    head = wire.head_of(holder.kind, holder.entries + step)
    return data[: holder.start] + head + data[holder.head : first] + middle + rest


def _count(random: Random, data: bytes, token: Token) -> bytes:
    """Lies about how long something is."""
    if token.kind in (wire.ARRAY, wire.MAP):
        wrong = (0, 1, token.entries - 1, token.entries + 1, 15, 2049, 70_000, 1 << 31)
        count = max(0, wrong[int(random() * len(wrong))])
        return data[: token.start] + wire.head_of(token.kind, count) + data[token.head :]
    middle = token.start + int(random() * (token.end - token.start))
    return data[:middle] + data[token.end :]


def _bytes(random: Random, data: bytes) -> bytes:
    """Changes bytes without regard to what they mean."""
    if not data:
        return bytes([int(random() * 256)])
    at, choice = int(random() * len(data)), random()
    if choice < 0.4:
        return data[:at] + bytes([data[at] ^ (1 << int(random() * 8))]) + data[at + 1 :]
    if choice < 0.7:
        return data[:at] + bytes([int(random() * 256)]) + data[at + 1 :]
    if choice < 0.85:
        return data[:at] + data[at + 1 :]
    return data[:at] + bytes([int(random() * 256)]) + data[at:]
