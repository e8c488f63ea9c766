"""How the simulated devices are made: from the environment, and from a file all processes share.

``KVKEEP_SIMULATED_CUDA`` names the folder and switches the simulated devices on. What processes
must agree on stands in that folder's ``devices.json``; seed and delays are each process's own.

Must not know: streams, copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = "KVKEEP_SIMULATED_CUDA"
SEED = "KVKEEP_SIMULATED_CUDA_SEED"
DELAY_US = "KVKEEP_SIMULATED_CUDA_DELAY_US"
VISIBLE = "CUDA_VISIBLE_DEVICES"

DEFAULT_DELAY_US = 200
MAX_DEVICES = 16


@dataclass(frozen=True)
class Machine:
    """What the processes of a folder share.

    Attributes:
        num_devices: 1 to 16.
        total_bytes: of each device's memory.
        context_bytes: that each process takes on each device it uses.
        pin_s_per_gib: how long page-locking takes.
        has_read_only_pins: whether ``pin`` can tell the device not to write.
        refused_peers: pairs (opener, owner) of devices that cannot see each other's memory.
        numa_nodes: of the first devices; those of the others are not known.
    """

    num_devices: int = 2
    total_bytes: int = 8 << 30
    context_bytes: int = 256 << 20
    pin_s_per_gib: float = 0.0
    has_read_only_pins: bool = True
    refused_peers: tuple[tuple[int, int], ...] = ()
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Of one process.

    Attributes:
        folder: that the processes share.
        seed: of delays and orders.
        delay_us: longest delay of a piece of work, microseconds.
        visible: device numbers this process may use.
        machine: see there.
    """

    folder: Path
    seed: int = 0
    delay_us: int = DEFAULT_DELAY_US
    visible: tuple[int, ...] = (0, 1)
    machine: Machine = field(default_factory=Machine)


def uuid_of(index: int) -> bytes:
    """A simulated device's name, 16 bytes."""
    return b"SIMULATED-GPU-%02d" % index


def index_of(uuid: bytes) -> int | None:
    """The number in a simulated device's name; None for any other name."""
    prefix, digits = uuid[:14], uuid[14:]
    known = prefix == b"SIMULATED-GPU-" and len(digits) == 2 and digits.isdigit()
    return int(digits) if known else None


def write_machine(folder: Path, machine: Machine) -> None:
    """Sets what the processes of a folder share; for before the first of them begins."""
    part = folder / "devices.json.part"
    part.write_text(json.dumps(asdict(machine)), encoding="utf-8")
    part.replace(folder / "devices.json")


def read_machine(folder: Path) -> Machine:
    """What the processes of a folder share; defaults where nobody set it."""
    try:
        values = json.loads((folder / "devices.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Machine()
    values["refused_peers"] = tuple((a, b) for a, b in values.get("refused_peers", ()))
    values["numa_nodes"] = tuple(values.get("numa_nodes", ()))
    return Machine(**values)


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings | None:
    """Reads the settings; None where simulated devices are not switched on.

    Raises:
        ValueError: a seed or delay that is no number.
    """
    name = environment.get(FOLDER, "")
    if not name:
        return None
    folder = Path(name)
    machine = read_machine(folder)
    return Settings(
        folder=folder,
        seed=int(environment.get(SEED, "0")),
        delay_us=int(environment.get(DELAY_US, str(DEFAULT_DELAY_US))),
        visible=_visible(environment.get(VISIBLE), machine.num_devices),
        machine=machine,
    )


def _visible(value: str | None, num_devices: int) -> tuple[int, ...]:
    """As the driver reads the variable: numbers or ``GPU-`` and a uuid, up to the first unknown."""
    if value is None:
        return tuple(range(num_devices))
    found: list[int] = []
    for word in value.split(","):
        index = _index_in(word.strip())
        if index is None or index >= num_devices:
            break
        found.append(index)
    return tuple(found)


def _index_in(word: str) -> int | None:
    if word.startswith("GPU-"):
        try:
            return index_of(bytes.fromhex(word[4:].replace("-", "")))
        except ValueError:
            return None
    return int(word) if word.isdigit() else None
