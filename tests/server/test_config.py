"""Settings: precedence, sizes, what a wrong value is answered with (B37, B46)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.simulated import settings as simulated
from protocol.errors import ConfigError, ErrorCode
from server import config
from server.config import GIB, MIB

ENDPOINT = {"endpoint": "ipc:///a/b"}


def test_the_command_line_wins_over_the_environment_over_the_default() -> None:
    environ = {"KVKEEP_L1_SIZE": "2G", "KVKEEP_ENDPOINT": "ipc:///env", "KVKEEP_LOG_LEVEL": "info"}
    both = config.read({"l1-size": "1G", "endpoint": None}, environ)
    assert both.arena_bytes == GIB
    assert both.endpoint.url == "ipc:///env"
    assert both.log_level == "INFO"
    none = config.read({}, {}, uid=12345)
    assert none.arena_bytes == 0
    assert none.endpoint.path.endswith("/kvkeep.sock")
    assert none.log_level == "WARNING"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("20G", 20 * GIB),
        ("512M", 512 * MIB),
        ("512MiB", 512 * MIB),
        ("512mb", 512 * MIB),
        ("1.5g", 3 * GIB // 2),
        ("2097152", 2097152),
        (" 1T ", 1 << 40),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert config.parse_size("l1-size", text) == num_bytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "1 G x", "1e9", "0x10", "20P", "٣G", "1.G"])
def test_b37_a_size_that_is_none_names_key_unit_and_value(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse_size("l1-size", text)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert "l1-size" in caught.value.message
    assert "20G" in caught.value.message


@given(st.integers(0, 1 << 45))
def test_a_shown_size_reads_back_nearly(num_bytes: int) -> None:
    shown = config.format_size(num_bytes).replace(" bytes", "").replace(" ", "")
    read = config.parse_size("x", shown)
    assert abs(read - num_bytes) <= num_bytes * 0.06


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("l1-size", "512K"),
        ("l1-size", "17T"),
        ("extent-size", "4K"),
        ("extent-size", "2G"),
        ("extent-size", "100001"),
        ("arena-dir", "here"),
        ("log-level", "chatty"),
        ("log-format", "xml"),
        ("traces", "1.5"),
        ("arena-at-exit", "burn"),
    ],
)
def test_b37_out_of_range_is_refused_with_the_range(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.read({**ENDPOINT, key: value}, {})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert key in caught.value.message


def test_the_arena_stays_unless_somebody_says_otherwise() -> None:
    assert config.read(ENDPOINT, {}).arena_at_exit == "keep"
    assert config.read(ENDPOINT, {"KVKEEP_ARENA_AT_EXIT": "Remove"}).arena_at_exit == "remove"
    typed = {**ENDPOINT, "arena-at-exit": "keep"}
    assert config.read(typed, {"KVKEEP_ARENA_AT_EXIT": "remove"}).arena_at_exit == "keep"


def test_who_set_a_wrong_value_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^INVALID_[A-Z]+: KVKEEP_L1_SIZE: l1-size='x'"):
        config.read(ENDPOINT, {"KVKEEP_L1_SIZE": "x"})
    with pytest.raises(ConfigError, match=r"^INVALID_CONFIG: l1-size='x'"):
        config.read({**ENDPOINT, "l1-size": "x"}, {"KVKEEP_L1_SIZE": "y"})
    with pytest.raises(ConfigError, match=r"^INVALID_[A-Z]+: KVKEEP_ENDPOINT: server URL 'x'"):
        config.read({}, {"KVKEEP_ENDPOINT": "x"})


def test_a_file_comes_after_the_environment_and_before_the_default(tmp_path: Path) -> None:
    path = tmp_path / "kvkeep.conf"
    path.write_text("l1-size = 3G\nlog-level = ERROR\nendpoint = ipc:///file\n")
    environ = {"KVKEEP_CONFIG": str(path), "KVKEEP_LOG_LEVEL": "INFO"}
    found = config.read({"endpoint": "ipc:///typed"}, environ)
    assert (found.arena_bytes, found.log_level) == (3 * GIB, "INFO")
    assert found.endpoint.url == "ipc:///typed"
    assert config.read({"config": str(path)}, {}).log_level == "ERROR"
    path.write_text("l1-size = x\n")
    with pytest.raises(ConfigError, match=f"{path}: l1-size='x'"):
        config.read({}, environ)
    path.write_text("\nendpoint =\n")  # there, but empty: no wish for the default
    with pytest.raises(ConfigError, match="line 2: endpoint has no value"):
        config.read({}, environ)
    with pytest.raises(ConfigError, match=r"KVKEEP_CONFIG: .*absolute path"):
        config.read({}, {"KVKEEP_CONFIG": "kvkeep.conf"})


def test_variables_that_are_no_settings_are_told_apart() -> None:
    environ = {config.variable(key): "" for key in config.KEYS}
    assert config.unknown_variables({**environ, "HOME": "/", "TRTLLM_KVKEEP_X": ""}) == []
    assert config.unknown_variables({**environ, "KVKEEP_L1SIZE": ""}) == ["KVKEEP_L1SIZE"]
    simulation = {simulated.FOLDER: "/x", simulated.SEED: "1", simulated.DELAY_US: "0"}
    assert config.unknown_variables({**environ, **simulation}) == []


def test_a_wrong_url_is_named_by_the_setting_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "kvkeep.conf"
    path.write_text("endpoint = http://x\n")
    far = {"XDG_RUNTIME_DIR": str(tmp_path / ("d" * 100))}
    Path(far["XDG_RUNTIME_DIR"]).mkdir()
    for options, environ, begin in (
        ({"endpoint": "http://x"}, {"KVKEEP_ENDPOINT": "ipc:///x"}, "endpoint: "),
        ({"endpoint": "http://x", "config": str(path)}, {}, "endpoint: "),
        ({}, {"KVKEEP_ENDPOINT": "http://x"}, "KVKEEP_ENDPOINT: "),
        ({"config": str(path)}, {}, f"{path}: endpoint: "),
        ({}, far, "endpoint: "),
    ):
        with pytest.raises(ConfigError) as caught:
            config.read(options, environ)
        assert caught.value.code == ErrorCode.INVALID_URL
        assert caught.value.message.startswith(f"{begin}server URL ")


def test_b46_an_empty_url_is_not_the_default() -> None:
    for options, environ in (({"endpoint": ""}, {}), ({}, {"KVKEEP_ENDPOINT": ""})):
        with pytest.raises(ConfigError) as caught:
            config.read(options, environ)
        assert caught.value.code == ErrorCode.INVALID_URL


@pytest.mark.parametrize(
    ("free", "folder", "expected"),
    [
        (20 * GIB, 100 * GIB, 10 * GIB),
        (20 * GIB, 10 * GIB, 9 * GIB),
        (20 * GIB, 0, 0),
    ],
)
def test_the_default_arena_leaves_room(free: int, folder: int, expected: int) -> None:
    assert config.derive_arena_bytes(free, folder) == expected


@pytest.mark.parametrize(
    ("arena", "extent"),
    [
        (MIB, MIB // 4),
        (57 * MIB, 8 * MIB),  # a container with the usual 64 MiB of shared memory
        (64 * MIB, 16 * MIB),
        (256 * MIB, 64 * MIB),
        (GIB, 64 * MIB),
        (4 * GIB, 256 * MIB),
        (20 * GIB, GIB),
        (1 << 40, GIB),
        (3 * GIB, 128 * MIB),
    ],
)
def test_extents_are_about_a_sixteenth_of_a_large_arena_and_a_quarter_of_a_small_one(
    arena: int, extent: int
) -> None:
    assert config.derive_extent_bytes(arena, 0) == extent


def test_an_extent_fits_into_its_arena() -> None:
    assert config.derive_extent_bytes(8 * MIB, MIB) == MIB
    with pytest.raises(ConfigError, match="extent-size"):
        config.derive_extent_bytes(8 * MIB, 16 * MIB)


def test_the_time_for_incomplete_chunks_is_in_seconds() -> None:
    assert config.read({}, {}).incomplete_timeout_s == 60.0
    assert config.read({"incomplete-timeout": "0.5"}, {}).incomplete_timeout_s == 0.5
    environ = {"KVKEEP_INCOMPLETE_TIMEOUT": "86400"}
    assert config.read({}, environ).incomplete_timeout_s == 86_400.0


@pytest.mark.parametrize("text", ["0", "0.05", "86401", "-1", "1m", "nan", "inf", "1e3"])
def test_a_time_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="incomplete-timeout") as caught:
        config.read({"incomplete-timeout": text}, {})
    assert "0.1 to 86400 seconds" in caught.value.message


def test_the_group_comes_from_the_command_line_the_environment_or_the_file(tmp_path: Path) -> None:
    assert config.read(ENDPOINT, {}).group == ""
    path = tmp_path / "kvkeep.conf"
    path.write_text("group = engines\n")
    from_file = {**ENDPOINT, "config": str(path)}
    assert config.read(from_file, {}).group == "engines"
    assert config.read(from_file, {"KVKEEP_GROUP": " 42 "}).group == "42"
    assert config.read({**from_file, "group": "llm"}, {"KVKEEP_GROUP": "42"}).group == "llm"


def test_tiers_from_the_command_line_the_environment_or_the_file(tmp_path: Path) -> None:
    assert config.read({}, {}).tiers == ()
    typed = config.read({"l2": "disk:/a?size=1G s3://bucket"}, {"KVKEEP_L2": "disk:/b?size=1G"})
    assert [(one.kind, one.name) for one in typed.tiers] == [("disk", "disk"), ("s3", "s3")]
    environ = {"KVKEEP_L2": " disk:/b?size=1G\n\tvalkey://h:1 "}
    assert [one.location for one in config.read({}, environ).tiers] == ["/b", "h:1"]
    path = tmp_path / "kvkeep.conf"
    path.write_text("l2 = disk:/c?size=1G disk:/d?size=1G\npromote-deadline = 5s\n")
    found = config.read({"config": str(path)}, {})
    assert [one.name for one in found.tiers] == ["disk", "disk2"]
    assert found.promote_deadline_s == 5.0


def test_a_tier_that_is_wrong_names_where_it_came_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KVKEEP_L2: l2: disk: size is missing"):
        config.read({}, {"KVKEEP_L2": "disk:/b"})
    path = tmp_path / "kvkeep.conf"
    path.write_text("l2 = floppy:/x\n")
    with pytest.raises(ConfigError, match=f"{path}: l2: there is no kind 'floppy': expected"):
        config.read({"config": str(path)}, {})


def test_the_deadline_of_promotions_is_in_seconds() -> None:
    assert config.read({}, {}).promote_deadline_s == 1.0
    assert config.read({"promote-deadline": "0.01"}, {}).promote_deadline_s == 0.01
    assert config.read({}, {"KVKEEP_PROMOTE_DEADLINE": "3600"}).promote_deadline_s == 3600.0
    for text in ("0", "0.001", "3601", "5m", "-1"):
        with pytest.raises(ConfigError, match=r"promote-deadline.*0.01 to 3600 seconds"):
            config.read({"promote-deadline": text}, {})


def test_variables_with_credentials_of_tiers_are_none_of_a_slip() -> None:
    environ = {"KVKEEP_VALKEY_USERNAME": "x", "KVKEEP_VALKEY_PASSWORD": "y"}
    assert config.unknown_variables(environ) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [("9177", "127.0.0.1:9177"), ("0.0.0.0:1", "0.0.0.0:1"), ("[::1]:80", "[::1]:80"), (" ", "")],
)
def test_where_pages_are_served(text: str, address: str) -> None:
    assert config.read({**ENDPOINT, "http": text}, {}).http == address
    assert config.read(ENDPOINT, {"KVKEEP_HTTP": text}).http == address


@pytest.mark.parametrize("wrong", ["x", "70000", "0", "0.0.0.0:0", "[::1]:00", "[::1]", "a b:1"])
def test_an_address_that_is_none_names_what_is_valid(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"http.*\[HOST:\]PORT with a port from 1 to 65535"):
        config.read({**ENDPOINT, "http": wrong}, {})


@pytest.mark.parametrize(
    ("text", "seconds"), [("60", 60), ("1m", 60), ("12 h", 43_200), ("7D", 604_800), ("", 0)]
)
def test_a_time_to_live_has_a_unit(text: str, seconds: int) -> None:
    assert config.read({**ENDPOINT, "namespace-ttl": text}, {}).namespace_ttl_s == seconds


@pytest.mark.parametrize("wrong", ["59", "0", "-1d", "1w", "367d", "1.5h", "d", "9999999999"])
def test_a_time_to_live_that_is_none_names_what_is_valid(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"namespace-ttl.*1m to 366d"):
        config.read({**ENDPOINT, "namespace-ttl": wrong}, {})
