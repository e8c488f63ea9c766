"""What was given, and by whom; names that are no settings are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server import config
from server.gathering import COMMAND_LINE, gather, refuse_unknown, unknown_variables


def test_each_setting_comes_from_the_first_that_gives_it(tmp_path: Path) -> None:
    own, foreign = tmp_path / "kvkeep.conf", tmp_path / "lmcache.yaml"
    own.write_text("log-level = INFO\ngroup = engines\nl1-size = 3G\nendpoint = ipc:///file\n")
    foreign.write_text("max_local_cpu_size: 5.0\nserver_url: ipc:///foreign\nchunk_size: 256\n")
    environ = {
        "KVKEEP_CONFIG": str(own),
        "KVKEEP_ENDPOINT": "ipc:///env",
        "KVKEEP_GROUP": "7",
        "LMCACHE_CONFIG_FILE": str(foreign),
    }
    found = gather({"endpoint": "ipc:///typed", "group": None}, environ)
    told = {key: (one.text, one.source) for key, one in found.values.items()}
    assert told == {
        "endpoint": ("ipc:///typed", COMMAND_LINE),
        "config": (str(own), "KVKEEP_CONFIG"),
        "group": ("7", "KVKEEP_GROUP"),
        "log-level": ("INFO", str(own)),
        "l1-size": ("3G", str(own)),
    }
    assert len(found.notes) == 1
    assert "chunk_size" in found.notes[0]


def test_a_file_of_lmcaches_comes_last_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text("max_local_cpu_size: 5.5\n")
    environ = {"LMCACHE_CONFIG_FILE": str(path)}
    found = gather({}, environ).values["l1-size"]
    assert found.text == "5.5G"
    assert found.source == f"max_local_cpu_size of {path} (LMCACHE_CONFIG_FILE)"
    assert config.read({}, environ).arena_bytes == 11 << 29
    path.write_text("max_local_cpu_size: much\n")
    with pytest.raises(ConfigError, match=rf"max_local_cpu_size of {path} .*: l1-size='muchG'"):
        config.read({}, environ)


def test_who_named_a_file_that_is_none_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^INVALID_CONFIG: config='here': .*absolute path"):
        gather({"config": "here"}, {"KVKEEP_CONFIG": "/there"})
    with pytest.raises(ConfigError, match=r"^INVALID_CONFIG: KVKEEP_CONFIG: config='/no/such'"):
        gather({}, {"KVKEEP_CONFIG": "/no/such"})
    with pytest.raises(ConfigError, match=r"^INVALID_CONFIG: LMCACHE_CONFIG_FILE='/no/such'"):
        gather({}, {"LMCACHE_CONFIG_FILE": "/no/such"})


def test_a_variable_that_is_no_setting_is_refused_with_the_right_one() -> None:
    refuse_unknown({"KVKEEP_L1_SIZE": "1G", "HOME": "/", "TRTLLM_KVKEEP_X": "1"})
    with pytest.raises(ConfigError, match=r"KVKEEP_L1SIZE .*did you mean KVKEEP_L1_SIZE") as caught:
        refuse_unknown({"KVKEEP_L1SIZE": "1G"})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    with pytest.raises(ConfigError, match=r"KVKEEP_QQQ .*there are KVKEEP_ENDPOINT"):
        refuse_unknown({"KVKEEP_QQQ": ""})


def test_what_kubernetes_puts_into_every_pod_is_no_slip() -> None:
    linked = {
        "KVKEEP_SERVICE_HOST": "10.0.0.1",
        "KVKEEP_SERVICE_PORT": "80",
        "KVKEEP_SERVICE_PORT_HTTP": "80",
        "KVKEEP_PORT": "tcp://10.0.0.1:80",
        "KVKEEP_PORT_80_TCP": "tcp://10.0.0.1:80",
        "KVKEEP_PORT_80_TCP_ADDR": "10.0.0.1",
        "KVKEEP_METRICS_SERVICE_HOST": "10.0.0.2",
        "KVKEEP_METRICS_PORT": "tcp://10.0.0.2:9464",
        "KVKEEP_METRICS_PORT_9464_TCP_PROTO": "tcp",
    }
    assert unknown_variables(linked) == []
    for name in ("KVKEEP_PORT", "KVKEEP_HTTP_PORT"):
        assert unknown_variables({name: "5555"}) == [name]
