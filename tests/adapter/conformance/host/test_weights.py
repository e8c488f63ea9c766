import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapter.conformance.host.weights import (
    INDEX_NAME,
    SHARD_NAME,
    TINY,
    WIDE,
    ModelConfig,
    make_weights,
    read_model_dir,
    write_model_dir,
)


def test_a_directory_reads_back_as_written(tmp_path: Path) -> None:
    for config in (TINY, WIDE):
        read, weights = read_model_dir(write_model_dir(tmp_path / str(config.seed), config))
        assert read == config
        made = make_weights(config)
        assert weights.keys() == made.keys()
        assert all(np.array_equal(weights[name], made[name]) for name in made)


def test_files_are_the_same_each_time_and_differ_by_seed(tmp_path: Path) -> None:
    first = write_model_dir(tmp_path / "a", TINY)
    again = write_model_dir(tmp_path / "b", TINY)
    other = write_model_dir(tmp_path / "c", replace(TINY, seed=9))
    for name in ("config.json", SHARD_NAME, INDEX_NAME):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert (first / SHARD_NAME).read_bytes() != (other / SHARD_NAME).read_bytes()
    assert (first / INDEX_NAME).read_bytes() == (other / INDEX_NAME).read_bytes()


def test_the_index_names_every_weight(tmp_path: Path) -> None:
    index = json.loads((write_model_dir(tmp_path, WIDE) / INDEX_NAME).read_text())
    weights = make_weights(WIDE)
    assert set(index["weight_map"]) == set(weights)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in weights.values())
    assert "lm_head.weight" not in weights  # tied


@pytest.mark.parametrize("wrong", [{"num_key_value_heads": 3}, {"head_dim": 15}])
def test_an_impossible_geometry_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        ModelConfig(**wrong)  # type: ignore[arg-type]
