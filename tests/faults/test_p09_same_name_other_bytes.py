"""P09: two things under one name or of one size are never taken for each other: it fails closed.

An adapter's number that means one thing here and another there, page layouts of equal size, weights
that were replaced under their name, and images that come in a later turn. Engines are real ones,
and every loaded page is compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import fingerprint
from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.faults.bystander import engaged, fill, read_all
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess

PROMPT = tokens(22, seed=9)
FULL = 20
X, Y = "aa" * 32, "bb" * 32


def image(number: int, position: int) -> dict[str, Any]:
    """One image of two tokens, known by its digest."""
    return {
        "multimodal_hashes": [[number] * 8],
        "multimodal_positions": [position],
        "multimodal_lengths": [2],
    }


def test_one_adapters_number_means_what_its_engine_was_told(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers swapped between two engines, and a third that was told nothing, all at once."""
    model = write_model(tmp_path / "m")
    rigs: list[EngineRig] = []
    for digests in ({"1": X, "2": Y}, {"1": Y, "2": X}, {}):
        monkeypatch.setenv("TRTLLM_KVKEEP_LORA_DIGESTS", json.dumps(digests))
        rigs.append(EngineRig(server.url, model).register())
    here, swapped, untold = rigs
    try:
        assert here.run_saved(PROMPT, lora_task_id=1).offered == 0  # X
        assert swapped.run_saved(PROMPT, lora_task_id=1).offered == 0  # Y
        assert untold.run_saved(PROMPT, lora_task_id=1).offered == 0  # its own affair
        assert swapped.run(PROMPT, lora_task_id=2).offered == FULL  # X, by its other number
        assert here.run(PROMPT, lora_task_id=2).offered == FULL  # Y
        assert untold.run(PROMPT, lora_task_id=1).offered == FULL  # within itself
        assert untold.run(PROMPT, lora_task_id=2).offered == 0
        assert here.run(PROMPT, lora_task_id=3).offered == 0
        for rig, offered in zip(rigs, (0, FULL, FULL), strict=True):  # the base model is none
            assert rig.run_saved(PROMPT).offered == offered
    finally:
        for rig in rigs:
            rig.close()


@pytest.mark.parametrize(
    "change",
    [{"kv_layout": "HND"}, {"attention_backend": "FLASHINFER"}, {"kv_dtype": "bfloat16"}],
    ids=lambda change: next(iter(change)),
)
def test_pages_of_equal_size_and_other_layout_are_apart(
    server: ServerProcess, change: dict[str, str]
) -> None:
    base = make_namespace(model=f"p09/{next(iter(change))}")
    other = msgspec.structs.replace(base, **change)
    assert base.groups == other.groups  # so nothing but the name of it tells them apart
    assert fingerprint(base) != fingerprint(other)
    keys = make_keys(9, 8)
    with engaged(server, base) as one, engaged(server, other) as two:
        for number, engine in enumerate((one, two)):
            assert engine.lookup(keys).ready == 0
            fill(engine, number)
            assert engine.save(keys, list(range(8))) == 8
        for number, engine in enumerate((one, two)):
            saved = engine.pages[:8].copy()
            fill(engine, 100 + number)
            assert np.array_equal(read_all(engine, keys, number + 1), saved)
        assert not set(one.extents) & set(two.extents)


def test_one_engine_cannot_have_two_layouts(server: ServerProcess) -> None:
    base = make_namespace(model="p09/ranks", num_ranks=2)
    other = msgspec.structs.replace(base, kv_layout="HND")
    with (
        Engine(server.url, server.side_path, base) as leader,
        Engine(server.url, server.side_path, other, instance=leader.instance, rank=1) as rank,
    ):
        leader.register()
        with pytest.raises(ReplyError) as caught:
            rank.register()
        assert caught.value.code == ErrorCode.INVALID_ARGUMENT


def test_new_weights_under_the_old_name_beside_the_old_ones(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A rolling upgrade: the old engine still runs, and both save and load all the while."""
    model = write_model(tmp_path / "m", weights=b"revision 1" * 100)
    old = EngineRig(server.url, model).register()
    assert old.run_saved(PROMPT).offered == 0
    write_model(model, weights=b"revision 2" * 100)
    new = EngineRig(server.url, model).register()
    try:
        assert new.run_saved(PROMPT).offered == 0
        for rig in (old, new, old):
            assert rig.run(PROMPT).offered == FULL
        again = EngineRig(server.url, model).register()  # what runs now is what lies there now
        assert again.run(PROMPT).offered == FULL
        again.close()
        assert new.stats()["namespaces"] >= 2
    finally:
        old.close()
        new.close()


@pytest.mark.parametrize("position", [20, 22, 23])
def test_an_image_in_the_second_turn_leaves_the_first_ones_keys(
    server: ServerProcess, tmp_path: Path, position: int
) -> None:
    """Also where it begins in the block that the first turn had left open."""
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    first = PROMPT[:22]
    second = [*first, *tokens(21, seed=10)]
    intact = position // SIZE * SIZE
    try:
        assert rig.run_saved(first).offered == 0
        with_cat, with_dog = image(1, position), image(2, position)
        assert rig.run_saved(second, **with_cat).offered == min(FULL, intact)
        third = [*second, *tokens(9, seed=11)]
        assert rig.run_saved(third, **with_cat).offered == 40
        assert rig.run_saved(third, **with_dog).offered == min(FULL, intact)
        assert rig.run_saved(third).offered == min(FULL, intact)
        for scope in (with_cat, with_dog, {}):
            assert rig.run(third, **scope).offered == 48
        assert rig.run(first + first[-1:]).offered == FULL  # and turn one is what it was
    finally:
        rig.close()


def test_a_second_image_counts_from_its_own_block_on(server: ServerProcess, tmp_path: Path) -> None:
    def images(*pairs: tuple[int, int]) -> dict[str, Any]:
        return {
            "multimodal_hashes": [[number] * 8 for number, _ in pairs],
            "multimodal_positions": [position for _, position in pairs],
            "multimodal_lengths": [2] * len(pairs),
        }

    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    try:
        assert rig.run_saved(PROMPT, **images((1, 0), (2, 12))).offered == 0
        assert rig.run(PROMPT, **images((1, 0), (2, 12))).offered == FULL
        assert rig.run(PROMPT, **images((1, 0), (3, 12))).offered == 12
        assert rig.run(PROMPT, **images((1, 0))).offered == 12
        assert rig.run(PROMPT, **images((2, 0), (1, 12))).offered == 0
    finally:
        rig.close()


def test_media_without_a_digest_are_neither_saved_nor_offered(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    unknown = {"multimodal_positions": [4], "multimodal_lengths": [2]}
    try:
        for _ in range(2):
            outcome = rig.run(PROMPT, **unknown)
            assert (outcome.offered, outcome.kept) == (0, False)
        assert rig.run_saved(PROMPT).offered == 0  # what the two left is under no key at all
        assert rig.run(PROMPT, **unknown).offered == 0
    finally:
        rig.close()
