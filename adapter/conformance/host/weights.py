"""A model directory with deterministic weights: config, weights file, index.

The files have the shape a real checkpoint has (``config.json``, one safetensors
shard, its index), so whoever derives a model's identity from them does the same
work as for a real model.

Must not know: the forward. Pure files; runs wherever it is called.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from adapter.conformance.host.tokenizer import VOCAB_SIZE

SHARD_NAME: Final = "model-00001-of-00001.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ModelConfig:
    """Geometry of the decoder, named as in common ``config.json`` files.

    Attributes:
        max_position_embeddings: Longest sequence in tokens; every attention of
            the model is computed over this padded length.
        kv_lora_rank: Not 0: the cache holds one latent per token in place of K and V (as in
            MLA), of ``head_dim = kv_lora_rank + qk_rope_head_dim`` elements.
        layer_windows: Attention window of each layer in tokens, 0 for full attention; empty
            for full attention everywhere.
        seed: Seeds the weights; another seed is another model.
    """

    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    vocab_size: int = VOCAB_SIZE
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    layer_windows: tuple[int, ...] = ()
    seed: int = 1

    def __post_init__(self) -> None:
        """Check what the forward relies on.

        Raises:
            ValueError: If heads do not divide, a rotary dimension is odd, a latent has several
                heads or another size, or windows do not fit the layers.
        """
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_key_value_heads must divide num_attention_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim must be even for rotary embeddings")
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        if self.kv_lora_rank and (self.num_key_value_heads, self.head_dim) != (1, latent):
            raise ValueError("a latent is one head of kv_lora_rank + qk_rope_head_dim elements")
        if self.layer_windows and len(self.layer_windows) != self.num_hidden_layers:
            raise ValueError("layer_windows must name a window for each layer")

    @property
    def kv_factor(self) -> int:
        """Tensors of KV per layer: K and V, or one latent."""
        return 1 if self.kv_lora_rank else 2

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window of each layer in tokens, 0 for full attention."""
        return self.layer_windows or (0,) * self.num_hidden_layers


TINY: Final = ModelConfig()
WIDE: Final = ModelConfig(
    hidden_size=96,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    intermediate_size=160,
    tie_word_embeddings=True,
    seed=2,
)
"""A second geometry: its page is twice the size of ``TINY``'s at equal block size."""

LATENT: Final = ModelConfig(
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=24,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    seed=3,
)
"""A latent per token in place of K and V: ``kv_factor`` 1."""

SLIDING: Final = ModelConfig(num_hidden_layers=4, layer_windows=(0, 48, 0, 48), seed=4)
"""Every second layer sees 48 tokens only: two layer groups in a V2 cache."""


def make_weights(config: ModelConfig) -> dict[str, FloatArray]:
    """Draw the weights of a model.

    Args:
        config: Geometry and seed.

    Returns:
        float32 arrays by checkpoint name, matrices ``[out, in]``.
    """
    rng = np.random.Generator(np.random.PCG64(config.seed))

    def matrix(rows: int, columns: int) -> FloatArray:
        # Twice the usual 1/sqrt(fan-in): attention far from uniform, so every page matters.
        drawn = rng.standard_normal((rows, columns)) * (2.0 / columns**0.5)
        return np.asarray(drawn, dtype=np.float32)

    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    weights = {
        "model.embed_tokens.weight": rng.standard_normal((config.vocab_size, hidden)).astype(
            np.float32
        ),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": np.ones(hidden, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            prefix + "self_attn.q_proj.weight": matrix(query, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, query),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(config.vocab_size, hidden)
    return weights


def write_model_dir(path: Path, config: ModelConfig) -> Path:
    """Write a model directory; existing files are replaced.

    Args:
        path: Directory, made if absent.
        config: Geometry and seed.

    Returns:
        ``path``.
    """
    path.mkdir(parents=True, exist_ok=True)
    weights = make_weights(config)
    document = {"architectures": ["KvkeepTinyForCausalLM"], "torch_dtype": "float32"}
    (path / "config.json").write_text(json.dumps(document | asdict(config), indent=2) + "\n")
    (path / SHARD_NAME).write_bytes(_to_safetensors(weights))
    index = {
        "metadata": {"total_size": sum(array.nbytes for array in weights.values())},
        "weight_map": dict.fromkeys(sorted(weights), SHARD_NAME),
    }
    (path / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")
    return path


def read_model_dir(path: Path) -> tuple[ModelConfig, dict[str, FloatArray]]:
    """Read what ``write_model_dir`` wrote.

    Args:
        path: Model directory.

    Returns:
        The geometry, and the weights by name.

    Raises:
        OSError: If a file is missing.
        ValueError: If a file does not hold what it should.
    """
    document: dict[str, Any] = json.loads((path / "config.json").read_text())
    names = ModelConfig.__dataclass_fields__
    fields = {key: value for key, value in document.items() if key in names}
    config = ModelConfig(**fields | {"layer_windows": tuple(fields.get("layer_windows", ()))})
    return config, _from_safetensors((path / SHARD_NAME).read_bytes())


def _to_safetensors(weights: dict[str, FloatArray]) -> bytes:
    # Format: u64 header length, JSON header with byte ranges, then the bytes.
    header: dict[str, Any] = {}
    offset = 0
    for name in sorted(weights):
        end = offset + weights[name].nbytes
        shape = list(weights[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(weights[n].tobytes() for n in header)


def _from_safetensors(data: bytes) -> dict[str, FloatArray]:
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    weights = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(body[begin:end], dtype="<f4").reshape(entry["shape"])
        weights[name] = array.astype(np.float32)
    return weights
