"""What enters the key beside tokens, and what bypasses the cache because it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.facts import facts_of, scope_of
from protocol.ids import InstanceId
from protocol.keys import BlockHashChain
from tests.adapter.hostlike import FakeRequest

A, B = InstanceId(b"a" * 16), InstanceId(b"b" * 16)
MEDIA = [[1, 2, 3, 4, 5, 6, 7, 8]]


def key(request: FakeRequest, instance: InstanceId = A, digests: Any = None) -> bytes:
    facts = facts_of(request, digests or {}, instance)
    assert facts.scope is not None
    chain = BlockHashChain.start(facts.scope, 4)
    chain.extend(facts.tokens, facts.media)
    return bytes(chain.keys)


def request(**changes: Any) -> FakeRequest:
    return FakeRequest(1, [1, 2, 3, 4, 5, 6, 7, 8], **changes)


def test_plain_requests_share() -> None:
    assert key(request(), A) == key(request(), B)


def test_lora_without_digest_stays_within_its_engine() -> None:  # B01, P09
    assert key(request(lora_task_id=1), A) != key(request(lora_task_id=1), B)
    assert key(request(lora_task_id=1)) != key(request(lora_task_id=2))
    assert key(request(lora_task_id=1)) != key(request())
    assert key(request(lora_task_id=0)) != key(request())


def test_lora_with_digest_is_shared_by_content() -> None:  # B01, P09
    x, y = b"x" * 32, b"y" * 32
    assert key(request(lora_task_id=1), A, {1: x}) == key(request(lora_task_id=2), B, {2: x})
    assert key(request(lora_task_id=1), A, {1: x}) != key(request(lora_task_id=1), B, {1: y})


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_salt_and_lora_are_not_run_together(s1: str, l1: str, s2: str, l2: str) -> None:
    """Salt 'a' with LoRA 'bc' is not salt 'ab' with LoRA 'c'."""
    one = request(cache_salt=s1 or None, lora_task_id=1)
    two = request(cache_salt=s2 or None, lora_task_id=1)
    pad = b"\0" * 16
    same = key(one, A, {1: l1.encode() + pad}) == key(two, A, {1: l2.encode() + pad})
    assert same == ((s1, l1) == (s2, l2))


def test_a_bc_is_not_ab_c() -> None:
    one, two = request(cache_salt="a", lora_task_id=1), request(cache_salt="ab", lora_task_id=1)
    assert key(one, A, {1: b"bc"}) != key(two, A, {1: b"c"})


def test_salts_of_all_epochs() -> None:
    numbered = request()
    numbered.cache_salt_id = 5  # type: ignore[attr-defined]
    assert len({key(numbered), key(request(cache_salt="5")), key(request())}) == 3


def test_media_enter_the_block_they_begin_in() -> None:  # P09
    def with_image(digest: int, position: int) -> bytes:
        hashes = [[digest] * 8]
        return key(
            request(
                multimodal_hashes=hashes, multimodal_positions=[position], multimodal_lengths=[2]
            )
        )

    assert with_image(1, 5)[:16] == key(request())[:16]
    assert with_image(1, 5)[16:] != key(request())[16:]
    assert with_image(1, 5) != with_image(2, 5)
    assert with_image(1, 1) != with_image(1, 2)


def test_media_in_any_order_of_report() -> None:
    hashes = [[1] * 8, [2] * 8]
    one = request(multimodal_hashes=hashes, multimodal_positions=[1, 5], multimodal_lengths=[1, 1])
    two = request(
        multimodal_hashes=hashes[::-1], multimodal_positions=[5, 1], multimodal_lengths=[1, 1]
    )
    assert key(one) == key(two)


@pytest.mark.parametrize(
    "changes",
    [
        {"multimodal_positions": [1], "multimodal_lengths": [2]},
        {"multimodal_hashes": MEDIA, "multimodal_positions": [1, 2], "multimodal_lengths": [1, 1]},
        {"is_generation_only_request": True},
        {"is_generation_only_request": lambda: True},
        {"cache_salt": 1.5},
    ],
)
def test_what_is_not_understood_bypasses(changes: dict[str, Any]) -> None:
    facts = facts_of(request(**changes), {}, A)
    assert facts.scope is None
    assert facts.why_bypassed


@pytest.mark.parametrize("name", ["prompt_embedding_table", "multimodal_embedding"])
def test_inputs_without_a_digest_bypass(name: str) -> None:
    one = request()
    setattr(one, name, object())
    assert facts_of(one, {}, A).scope is None


def test_scope_without_anything_is_shared() -> None:
    assert scope_of(request(), {}, A).instance is None


_PRINT_KEYS = """
from adapter.facts import facts_of
from protocol.ids import InstanceId
from protocol.keys import BlockHashChain
from tests.adapter.hostlike import FakeRequest
request = FakeRequest(1, list(range(64)), cache_salt="salt", lora_task_id=3)
facts = facts_of(request, {3: b"d" * 32}, InstanceId(b"i" * 16))
chain = BlockHashChain.start(facts.scope, 16)
chain.extend(facts.tokens, facts.media)
print(bytes(chain.keys).hex())
"""


def test_processes_agree_whatever_their_hash_seed(root: Path) -> None:  # B03
    printed = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_KEYS],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].strip()) == 4 * 32
