from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.demo import logits  # noqa: E402

pytestmark = pytest.mark.torch


def test_equal_means_every_bit(tmp_path: Path) -> None:
    kept = [torch.arange(4.0), torch.arange(4.0) / 3]
    logits.write(tmp_path / "a.npy", kept)
    assert logits.equal(tmp_path / "a.npy", [row.clone() for row in kept])
    other = [row.clone() for row in kept]
    other[1].view(torch.int32)[2] ^= 1
    assert not logits.equal(tmp_path / "a.npy", other)


def test_a_missing_token_or_a_nan_is_not_equal(tmp_path: Path) -> None:
    kept = [torch.ones(3), torch.full((3,), float("nan"))]
    logits.write(tmp_path / "a.npy", kept)
    assert not logits.equal(tmp_path / "a.npy", kept)
    assert not logits.equal(tmp_path / "a.npy", kept[:1])


def test_without_a_reference_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        logits.equal(tmp_path / "none.npy", [torch.ones(3)])
