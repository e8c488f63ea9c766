"""LMCache's names: each becomes a setting, or is named as one that has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from server import config
from server.lmcachenames import FLAGS, WITHOUT_COUNTERPART, of_environment, of_file, of_flags


def test_flags_become_settings() -> None:
    values, notes = of_flags({"host": "localhost", "port": "6000", "l1-size-gb": "20.5"})
    assert values == {"endpoint": "tcp://localhost:6000", "l1-size": "20.5G"}
    assert notes == []
    assert of_flags({"host": "::1"})[0] == {"endpoint": "tcp://[::1]:5555"}
    assert of_flags({"port": "6000"})[0] == {"endpoint": "tcp://localhost:6000"}
    assert of_flags({"l1-size-gb": "0.0625"})[0] == {"l1-size": str(64 << 20)}
    assert of_flags(dict.fromkeys(FLAGS)) == ({}, [])
    assert config.read(dict(values), {}).arena_bytes == 41 << 29


def test_flags_without_a_counterpart_are_named() -> None:
    given = {"chunk-size": "256", "eviction-policy": "LRU", "max-workers": "4", "host": None}
    values, notes = of_flags(given)
    assert values == {}
    assert [note.split()[0] for note in notes] == [
        "--chunk-size",
        "--eviction-policy",
        "--max-workers",
    ]
    assert all("no counterpart" in note for note in notes)
    assert set(FLAGS) & set(WITHOUT_COUNTERPART) == {name for name in FLAGS if given.get(name)}


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "", "::"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="engines are on this machine"):
        of_flags({"host": host})


def texts(given: dict[str, str]) -> dict[str, str]:
    return {key: one.text for key, one in of_file("/x.yaml", given).values.items()}


def test_keys_of_the_file_become_settings() -> None:
    given = {
        "local_cpu": "true",
        "max_local_cpu_size": "5.0",
        "local_disk": "file:///mnt/a b/",
        "max_local_disk_size": "100",
        "remote_url": "redis://cache:6379/0",
    }
    found = of_file("/x.yaml", given)
    assert texts(given) == {
        "l1-size": "5.0G",
        "l2": "disk:/mnt/a%20b/kvkeep?size=100G valkey://cache:6379",
    }
    assert found.notes == ()
    assert found.values["l2"].source == (
        "local_disk and remote_url of /x.yaml (LMCACHE_CONFIG_FILE)"
    )
    tiers = config.read(dict(texts(given)), {}).tiers
    assert [(tier.kind, tier.location) for tier in tiers] == [
        ("disk", "/mnt/a b/kvkeep"),
        ("valkey", "cache:6379"),
    ]


@pytest.mark.parametrize(
    ("url", "tier"),
    [
        ("redis://h:1", "valkey://h:1"),
        ("redis://h", "valkey://h:6379"),
        ("redis://[::1]", "valkey://[::1]:6379"),
        ("valkey://h:1", "valkey://h:1"),
        ("rediss://h:1", "valkey://h:1?tls=yes"),
        ("mooncakestore://m:50051/", "mooncake://m:50051"),
    ],
)
def test_a_store_becomes_a_tier(url: str, tier: str) -> None:
    assert texts({"remote_url": url}) == {"l2": tier}
    assert len(config.read({"l2": tier}, {}).tiers) == 1


@pytest.mark.parametrize("key", ["server_url", "remote_url"])
def test_a_url_of_this_server_is_its_endpoint(key: str) -> None:
    assert texts({key: "ipc:///run/x"}) == {"endpoint": "ipc:///run/x"}
    assert of_file("/x", {key: "inproc://"}).values == {}
    assert of_file("/x", {key: "inproc://"}).notes == ()


def test_the_server_comes_before_the_remote() -> None:
    both = {"remote_url": "ipc:///b", "server_url": "ipc:///a"}
    assert texts(both) == {"endpoint": "ipc:///a"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local_cpu": "False"}, "local_cpu of /x (LMCACHE_CONFIG_FILE) has no counterpart"),
        ({"chunk_size": "256"}, "TRTLLM_KVKEEP_CHUNK_TOKENS"),
        ({"remote_serde": "naive"}, "remote_serde"),
        ({"remote_url": "lm://h:1"}, "takes the place"),
        ({"remote_url": "infinistore://h:1"}, "infinistore://"),
        ({"remote_url": "h:1"}, "no tier can be made of that"),
        ({"server_url": "h:1"}, "server_url"),
        ({"local_disk": "data", "max_local_disk_size": "1"}, "absolute path"),
        ({"local_disk": "/data"}, "needs a size"),
        ({"local_disk": "/data", "max_local_disk_size": "0.0"}, "needs a size"),
        ({"max_local_disk_size": "5"}, "there is no local_disk"),
        ({"b": "1", "a": "2"}, "a, b of /x (LMCACHE_CONFIG_FILE): no counterpart here"),
    ],
)
def test_what_has_no_counterpart_is_named_in_one_line(given: dict[str, str], said: str) -> None:
    found = of_file("/x", given)
    assert found.values == {}
    [note] = found.notes
    assert said in note
    assert "\n" not in note


def test_no_secret_is_shown() -> None:
    for url in ("redis://me:hunter2@h:1", "me:hunter2@h", "s3://a:hunter2@b/c"):
        found = of_file("/x", {"remote_url": url})
        assert found.values == {}
        assert "hunter2" not in "".join(found.notes)


def test_the_file_is_read_without_a_yaml_library(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text(
        "chunk_size: 256  # tokens\nlocal_disk: null\nmax_local_cpu_size: 2.0\n"
        "extra_config:\n  remote_url: redis://nested:1\n"
    )
    found = of_environment({"LMCACHE_CONFIG_FILE": str(path)})
    assert {key: one.text for key, one in found.values.items()} == {"l1-size": "2.0G"}
    assert len(found.notes) == 1
    for environ in ({}, {"LMCACHE_CONFIG_FILE": ""}, {"LMCACHE_CONFIG_FILE": " "}):
        assert of_environment(environ).values == {}
