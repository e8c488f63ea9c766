"""Who plays: four engines of three kinds, one of them of two processes, in drawn load modes.

Each incarnation of an engine draws version, load mode and memory anew; what it shares with others
of its kind stays. Must not know: when engines begin and end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adapter.config import ENV_BUDGET_MS, ENV_HELD_PERCENT, ENV_LOAD_MODE, make_kv_connector_config
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.engines import TensorParallelEngine
from tests.chaos.labour import Task
from tests.chaos.texts import Library

NUM_BLOCKS: Final = 112
_WIDTH: Final = 6
_HEADS, _HEAD_DIM = 2, 16
_SETTINGS: Final = {
    # Two cores for everything: a late answer costs a hit, and hits are what is tested here.
    ENV_BUDGET_MS: "200",
    ENV_HELD_PERCENT: "40",
    # glibc returns what threads freed late; one arena keeps ranks small.
    "MALLOC_ARENA_MAX": "2",
}

_V1_MODES: Final = (("E2", "sync"), ("E2", "layerwise"), ("E4", "async"), ("E4", "auto"))
_V2_MODES: Final = (("E3", "sync"), ("E4", "async"), ("E4", "layerwise"), ("E4", "auto"))


@dataclass(frozen=True)
class Role:
    """An engine, over all of its incarnations.

    Attributes:
        name: for messages.
        kind: engines of one kind share bytes.
        size: processes.
        is_v2: which cache manager.
        windows: of its layers.
        modes: version and load mode, one of which is drawn.
        private: share of incarnations whose pool the server cannot map.
    """

    name: str
    kind: str
    size: int = 1
    is_v2: bool = False
    windows: tuple[int, ...] = (0, 0)
    modes: tuple[tuple[str, str], ...] = _V1_MODES
    private: float = 0.2


CAST: Final = (
    Role("one", "v1"),
    Role("other", "v1"),
    Role("window", "v2", is_v2=True, windows=(0, 48), modes=_V2_MODES),
    Role("pair", "tp2", size=2, private=0.0),
)


@dataclass(frozen=True)
class Place:
    """Where a run happens.

    Attributes:
        url: of the server.
        wire: path of its endpoint.
        side: path of its side socket.
        models: folder of model directories.
        rate: requests per second of an engine at most.
        fresh: share of prompts that begin like no other.
        again: share of prompts that are asked again.
    """

    url: str
    wire: str
    side: str
    models: Path
    rate: float
    fresh: float
    again: float


@dataclass(frozen=True)
class Part:
    """What one incarnation of a role is made of."""

    role: Role
    epoch: str
    mode: str
    is_private: bool
    task: Task

    def __str__(self) -> str:
        memory = ", private memory" if self.is_private else ""
        return f"{self.role.name} ({self.role.kind}, {self.epoch}, {self.mode}{memory})"


def draw_part(role: Role, seed: int, number: int, place: Place) -> Part:
    """An incarnation.

    Args:
        role: whose.
        seed: of the run.
        number: of the incarnation.
        place: of the run.
    """
    rng = random.Random(f"part {seed} {role.name} {number}")
    epoch, mode = rng.choice(role.modes)
    task = Task(
        kind=role.kind,
        seed=rng.randrange(1 << 31),
        num_layers=len(role.windows),
        head_bytes=_HEADS * _HEAD_DIM,
        windows=role.windows,
        width=_WIDTH,
        rate=place.rate,
        fresh=place.fresh,
        again=place.again,
        wire=place.wire,
        side=place.side,
    )
    return Part(role, epoch, mode, rng.random() < role.private, task)


def start(part: Part, place: Place) -> TensorParallelEngine:
    """Starts an incarnation and waits until it serves.

    Args:
        part: what it is made of.
        place: of the run.

    Returns:
        The running engine; nothing is asked of it yet.

    Raises:
        JobDiedError: it did not come up, or was killed meanwhile.
    """
    role, library = part.role, Library()
    made = make_kv_connector_config(place.url)
    args = LlmArgs(
        model=str(place.models / role.kind),
        kv_cache_config=KvCacheConfig(
            tokens_per_block=library.block,
            enable_partial_reuse=False,
            use_uvm=part.is_private and not role.is_v2,
            use_kv_cache_manager_v2=role.is_v2,
        ),
        kv_connector_config=KvCacheConnectorConfig(
            connector_module=made.connector_module,
            connector_scheduler_class=made.connector_scheduler_class,
            connector_worker_class=made.connector_worker_class,
            server_url=made.server_url,
        ),
        max_num_tokens=8 * library.longest,
        enable_chunked_prefill=not role.is_v2,
    )
    options = HostOptions(
        epoch=part.epoch,  # type: ignore[arg-type]
        layout="v2" if role.is_v2 else "v1",
        regions="apart" if role.is_v2 else "joined",
        private_pool=part.is_private,
        capture_logits=False,
    )
    return TensorParallelEngine(
        args,
        NUM_BLOCKS,
        role.size,
        options=options,
        environ={**_SETTINGS, **part.task.as_environ(), ENV_LOAD_MODE: part.mode},
        plugins=["tests.chaos.labour:install"],
        model="tests.chaos.labour:model",
    )


def write_models(models: Path) -> None:
    """Makes the model directories of all roles; engines read nothing but their identity there.

    Args:
        models: an empty folder.
    """
    for role in CAST:
        folder = models / role.kind
        folder.mkdir(parents=True, exist_ok=True)
        config: Mapping[str, int] = {
            "num_hidden_layers": len(role.windows),
            "num_attention_heads": 2 * _HEADS,
            "num_key_value_heads": _HEADS,
            "head_dim": _HEAD_DIM,
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(f"weights of {role.kind}".encode())
