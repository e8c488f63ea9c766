import subprocess
import sys
import types
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter import trtllm_api as api

NEW_PATH, OLD_PATH = api.CONNECTOR_MODULES

FAKE_HOST = """
from dataclasses import dataclass

@dataclass
class RequestData:
    request_id: int

@dataclass
class SchedulerOutput:
    new_requests: list

class KvCacheConnectorScheduler:
    origin = __name__

class KvCacheConnectorWorker:
    origin = __name__
"""


def plant_host(folder: Path, module: str) -> None:
    parts = module.split(".")
    package = folder
    for part in parts[:-1]:
        package = package / part
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    (folder / parts[0] / "__init__.py").write_text(
        "__version__ = '9.8.7'\ndef mpi_rank():\n    return 3\n"
    )
    (folder / parts[0] / "llmapi").mkdir(exist_ok=True)
    (folder / parts[0] / "llmapi" / "llm_args.py").write_text(
        "class KvCacheConnectorConfig:\n    pass\n"
    )
    (package / f"{parts[-1]}.py").write_text(FAKE_HOST)


def in_fresh_process(folder: Path, root: Path) -> list[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(folder)!r}]\n"
        "from adapter import trtllm_api as api\n"
        "print(getattr(api.KvCacheConnectorScheduler, 'origin', 'fallback'))\n"
        "print(api.host_is_installed(), api.host_version(), api.epoch_features().block_hashes)\n"
        "print(api.mpi_rank(), getattr(api.connector_config_class(), '__name__', None))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("module", [NEW_PATH, OLD_PATH])
def test_the_installed_host_is_used_from_either_path(
    module: str, tmp_path: Path, root: Path
) -> None:
    plant_host(tmp_path, module)
    assert in_fresh_process(tmp_path, root) == [
        module,
        "True 9.8.7 False",
        "3 KvCacheConnectorConfig",
    ]


def test_the_new_path_wins_over_the_old(tmp_path: Path, root: Path) -> None:
    plant_host(tmp_path, OLD_PATH)
    plant_host(tmp_path, NEW_PATH)
    assert in_fresh_process(tmp_path, root)[0] == NEW_PATH


def test_without_a_host_the_fallback_is_used(tmp_path: Path, root: Path) -> None:
    (tmp_path / "tensorrt_llm.py").write_text("raise OSError('libcuda.so.1 is missing')\n")
    assert in_fresh_process(tmp_path, root) == ["fallback", "False none True", "0 None"]


def test_why_no_host_was_found_is_kept() -> None:
    def load(name: str) -> types.ModuleType:
        raise ImportError("not here")

    module, reason = api.find_host_module(load)
    assert module is None
    assert reason.count("not here") == 2
    assert NEW_PATH in reason


def test_features_are_looked_up_not_derived_from_versions() -> None:
    late = make_dataclass("late", ["request_id", "cache_salt_id", "new_block_ids_by_layer_group"])
    base = type("Base", (), {"request_reset": None, "supports_attention_dp": False})
    found = api.epoch_features(base, late)
    assert found.request_data_salt
    assert found.layer_groups
    assert found.request_reset
    assert found.attention_dp
    assert not found.block_hashes
    assert not found.wait_for_initialization
    assert not api.epoch_features(api.KvCacheConnectorScheduler, api.RequestDataE1).priorities


@pytest.mark.parametrize(
    ("attributes", "salt"),
    [
        ({}, None),
        ({"cache_salt": None}, None),
        ({"cache_salt": ""}, None),
        ({"cache_salt": "tenant"}, "tenant"),
        ({"cache_salt_id": 7}, 7),
        ({"cache_salt_id": 0}, 0),
        ({"cache_salt": None, "cache_salt_id": 7}, 7),
        ({"cache_salt": "tenant", "cache_salt_id": 7}, "tenant"),
    ],
)
def test_salt(attributes: dict[str, object], salt: object) -> None:
    assert api.cache_salt_of(SimpleNamespace(**attributes)) == salt


@pytest.mark.parametrize("salt", [b"bytes", 1.5, True])
def test_a_salt_that_is_not_understood_is_refused(salt: object) -> None:
    with pytest.raises(TypeError, match="cache_salt"):
        api.cache_salt_of(SimpleNamespace(cache_salt=salt))


def test_lora_and_generation_only() -> None:
    assert api.lora_id_of(SimpleNamespace()) is None
    assert api.lora_id_of(SimpleNamespace(lora_task_id=0)) == 0
    assert not api.is_generation_only(SimpleNamespace())
    assert api.is_generation_only(SimpleNamespace(is_generation_only_request=True))
    assert api.is_generation_only(SimpleNamespace(is_generation_only_request=lambda: True))
    assert not api.is_generation_only(SimpleNamespace(is_generation_only_request=lambda: False))


def media(**attributes: object) -> api.MultimodalItems | None:
    return api.multimodal_items_of(SimpleNamespace(**attributes))


def test_no_media() -> None:
    assert media() is None
    assert media(multimodal_hashes=None, multimodal_positions=None, multimodal_lengths=[]) is None


def test_media_with_hashes() -> None:
    items = media(
        multimodal_hashes=[[1, -1, 3, 4, 5, 6, 7, 8], [2**32 - 1] * 8],
        multimodal_positions=[3, 40],
        multimodal_lengths=[8, 9],
    )
    assert items is not None
    assert items.has_hashes
    assert items.hashes[0][:8] == bytes.fromhex("01000000ffffffff")
    assert items.hashes[1] == b"\xff" * 32
    assert (items.positions, items.lengths) == ((3, 40), (8, 9))


@pytest.mark.parametrize(
    "hashes",
    [None, [], [[1] * 8], [[1] * 8, [2] * 7], [[1] * 8] * 3],
    ids=["none", "empty", "too few", "short digest", "too many"],
)
def test_media_without_a_digest_each_has_no_hashes(hashes: object) -> None:
    items = media(multimodal_hashes=hashes, multimodal_positions=[1, 5], multimodal_lengths=[2, 2])
    assert items is not None
    assert not items.has_hashes
    assert items.positions == (1, 5)


def test_without_a_host_the_conformance_host_says_which_epoch_it_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for epoch, cancel, groups in (("E1", False, False), ("E3", False, True), ("E4", True, True)):
        monkeypatch.setenv(api.CONFORMANCE_EPOCH, epoch)
        found = api.epoch_features()
        assert (found.cancel_load, found.layer_groups) == (cancel, groups)
    # A class that is named is looked at, whatever is played.
    assert not api.epoch_features(object).cancel_load
    monkeypatch.delenv(api.CONFORMANCE_EPOCH)
    assert not api.epoch_features().cancel_load


PLAYED = """
from adapter import trtllm_api as api
from adapter.conformance.host.construction import playing
from adapter.conformance.host.reports import Batch, DeltaReporter, Scheduled
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams

request = HostRequest(1, RequestParams((1, 2), 1), RequestHandle(1), None, tokens=[1, 2])
request.tables = [[0], [0]]
entry = Scheduled(request, 0, 2, 2, 0, True, True)
with playing("E4"):
    print(api.host_is_installed(), api.epoch_features().cancel_load, api.mpi_rank())
print(api.epoch_features().cancel_load, api.mpi_rank())
(data,) = DeltaReporter("E4", is_v2=True).report(Batch(contexts=[entry])).new_requests
print(data.new_block_ids_by_layer_group)
"""


def test_the_conformance_host_plays_its_epoch_where_another_is_installed(
    tmp_path: Path, root: Path
) -> None:
    plant_host(tmp_path, OLD_PATH)  # its reports have one field, its classes nothing
    code = f"import sys; sys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]\n{PLAYED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True 0", "False 3", "[[0], [0]]"]


def test_without_a_host_the_rank_is_told_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(api.CONFORMANCE_RANK, "3")
    assert api.mpi_rank() == 3
    monkeypatch.delenv(api.CONFORMANCE_RANK)
    assert api.mpi_rank() == 0


def test_a_branch_says_whether_it_keeps_offers() -> None:
    def args(**fields: object) -> SimpleNamespace:
        return SimpleNamespace(kv_connector_config=SimpleNamespace(**fields))

    assert api.keeps_offers(args(aggressive_prefix_budgeting=True))
    for other in (args(), args(aggressive_prefix_budgeting=False), SimpleNamespace()):
        assert not api.keeps_offers(other)
