"""Tiers as the operator writes them: read whole, refused in one line that gives no secret away."""

import pytest

from protocol.errors import ConfigError, ErrorCode
from server import tierspec
from server.core.tiers.policy import Policy
from server.sizes import GIB, MIB
from server.tieroptions import KINDS
from server.tierspec import (
    TierSpec,
    from_json,
    has_ledger,
    joined,
    keeps_quotas,
    parse,
    parse_all,
    to_json,
)

SECRET = "hunter2"


def test_a_disk_with_everything() -> None:
    spec = parse(
        "disk:/var/l2%20a/?size=200G&layout=files&policy=after-3-uses&concurrency=8"
        "&bandwidth=500M&name=nvme"
    )
    assert spec == TierSpec(
        kind="disk",
        name="nvme",
        location="/var/l2 a",
        policy=Policy.AFTER_USES,
        uses=3,
        concurrency=8,
        bandwidth_bytes_s=500 * MIB,
        options={"size": 200 * GIB, "layout": "files"},
    )
    assert (spec.number("size"), spec.text("layout")) == (200 * GIB, "files")


def test_defaults_are_filled_in() -> None:
    spec = parse("valkey://h:6379,[::1]:6380?credentials=/run/v")
    assert spec.location == "h:6379,[::1]:6380"
    assert spec.credentials == "/run/v"
    assert (spec.policy, spec.uses, spec.concurrency) == (Policy.WRITE_THROUGH, 0, 4)
    assert spec.bandwidth_bytes_s == 0
    assert set(spec.options) == set(KINDS["valkey"].options)
    assert spec.flag("cluster") is False


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_takes_a_file_of_keys(kind: str) -> None:
    example = KINDS[kind].example
    url = example + ("&" if "?" in example else "?") + "keys=/etc/kvkeep/keys"
    assert from_json(to_json(parse(url))).keys == "/etc/kvkeep/keys"
    assert parse(example).keys == ""
    with pytest.raises(ConfigError, match="the absolute path of a file") as caught:
        parse(url.replace("/etc/kvkeep/keys", SECRET))
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("path", ["/p", "///p"])
def test_a_path_may_be_written_as_in_other_urls(path: str) -> None:
    assert parse(f"disk:{path}?size=1G").location == "/p"


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_each_kind_is_read_and_travels_as_json(kind: str) -> None:
    spec = parse(KINDS[kind].example)
    assert spec.kind == kind
    assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize("text", ["write-through", "on-evict", "after-1-uses", "none"])
def test_policies(text: str) -> None:
    spec = parse(f"disk:/p?size=1G&policy={text}")
    assert spec.policy.value == text.replace("1", "N")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "expected a URL such as disk:/path"),
        ("disk", "expected a URL such as disk:/path"),
        ("file:/x", "l2: there is no kind 'file': expected a URL such as disk:/path"),
        ("disk:/" + "x" * 2048, "it is too long"),
        ("disk:/x", "size is missing"),
        ("disk:x?size=1G", "absolute path"),
        ("disk://x?size=1G", "absolute path"),
        ("disk:/x%zz?size=1G", "%20"),
        ("disk:/x%ff?size=1G", "%20"),
        ("disk:/x?size=1", "16 MiB to 1024 TiB"),
        ("disk:/x?size=", "size has no value"),
        ("disk:/x?size=1G&size=2G", "size is given twice"),
        ("disk:/x?size=1G&colour=red", "'colour' is none of its options policy"),
        ("disk:/x?size=1G&layout=tree", "slab or files"),
        ("disk:/x?size=1G&policy=sometimes", "one of write-through"),
        ("disk:/x?size=1G&policy=after-0-uses", "one of write-through"),
        ("disk:/x?size=1G&policy=after-N-uses", "one of write-through"),
        ("disk:/x?size=1G&concurrency=0", "1 to 64 threads"),
        ("disk:/x?size=1G&bandwidth=31M", "at least 32M"),
        ("disk:/x?size=1G&name=L2", "a letter first"),
        ("disk:/x?size=1G&name=l1", "not l1"),
        ("disk:/x?size=1G&credentials=/c", "takes no credentials"),
        ("mooncake:/x", "expected mooncake://"),
        ("mooncake://a:1,b:2", "expected host:port"),
        ("mooncake://a:1?metadata=etcd", "P2PHANDSHAKE"),
        ("valkey://h", "host:port, or several"),
        ("valkey://h:1?tls=maybe", "yes or no"),
        ("s3://b", "name of a bucket"),
        ("s3://bucket?endpoint=ftp://x", "http://host:port"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    error = caught.value
    assert error.code == ErrorCode.INVALID_CONFIG
    assert error.detail["key"] == "l2"
    assert told in error.message
    assert error.message.startswith("l2: ")
    assert "\n" not in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "url",
    [
        f"valkey://user:{SECRET}@h:6379",
        f"valkey://{SECRET}@h:6379?bad",
        f"redis://me:{SECRET}@h:6379",
        f"{SECRET} is it:",
        f"s3://{SECRET}@bucket",
        f"s3://bucket?endpoint=https://me:{SECRET}@h",
        f"mooncake://a:1?metadata=http://me:{SECRET}@h",
        f"valkey://h:6379?password={SECRET}",
        f"s3://bucket?{SECRET}!=1",
        f"valkey://h:6379?credentials={SECRET}",
    ],
)
def test_no_refusal_shows_a_secret(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.detail)


def test_tiers_keep_their_order_and_get_names_of_their_own() -> None:
    urls = ["disk:/a?size=1G", "valkey://h:1", "disk:/b?size=1G", "disk:/c?size=1G"]
    assert [one.name for one in parse_all(urls)] == ["disk", "valkey", "disk2", "disk3"]
    assert parse_all([]) == ()


def test_which_of_several_is_wrong() -> None:
    urls = ["disk:/a?size=1G", "floppy:/x"]
    with pytest.raises(ConfigError, match="l2: tier 2 of 2: there is no kind 'floppy': expected"):
        parse_all(urls)


def test_what_was_typed_is_joined_and_nothing_is_no_url() -> None:
    assert joined(()) is None
    assert joined(("disk:/a?size=1G", "s3://bucket")) == "disk:/a?size=1G s3://bucket"
    with pytest.raises(ConfigError, match="not an empty one"):
        joined(("disk:/a?size=1G", " "))


def test_names_and_places_are_not_shared() -> None:
    with pytest.raises(ConfigError, match="two tiers are named x"):
        parse_all(["disk:/a?size=1G&name=x", "disk:/b?size=1G&name=x"])
    with pytest.raises(ConfigError, match="at one place"):
        parse_all(["disk:/a?size=1G", "disk:/a/?size=2G"])
    with pytest.raises(ConfigError, match="at most 8"):
        parse_all([f"disk:/{n}?size=1G" for n in range(tierspec.MAX_TIERS + 1)])


def test_json_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        from_json(b"{")
    with pytest.raises(KeyError):
        from_json(b'{"policy": "LATER"}')


def test_a_disk_keeps_quotas_in_either_layout() -> None:
    assert keeps_quotas(parse("disk:/a?size=1G"))
    assert keeps_quotas(parse("disk:/a?size=1G&layout=files"))
    assert not keeps_quotas(parse("valkey://localhost:6379"))


@pytest.mark.parametrize(
    "url", ["valkey://localhost:6379", "s3://bucket", "mooncake://localhost:50051"]
)
def test_a_store_has_a_ledger_where_one_is_named(url: str) -> None:
    assert not has_ledger(parse(url))
    spec = parse(f"{url}?ledger=/var/lib/kvkeep/ledger")
    assert has_ledger(spec)
    assert not keeps_quotas(spec)
    assert spec.text("ledger") == "/var/lib/kvkeep/ledger"
    with pytest.raises(ConfigError, match="expected an absolute path"):
        parse(f"{url}?ledger=ledger")
    with pytest.raises(ConfigError, match="two tiers have one ledger"):
        parse_all([f"{url}?ledger=/a", "valkey://localhost:6380?ledger=/a"])
    assert len(parse_all([f"{url}?ledger=/a", "valkey://localhost:6380?ledger=/b"])) == 2


def test_a_disk_has_no_ledger() -> None:
    assert not has_ledger(parse("disk:/a?size=1G"))
    with pytest.raises(ConfigError, match="'ledger' is none of its options"):
        parse("disk:/a?size=1G&ledger=/a")


def test_a_store_is_known_by_its_place_and_endpoint_whatever_it_is_called() -> None:
    one, other, again = (
        parse(f"s3://bucket/x?endpoint={endpoint}&name={name}")
        for name, endpoint in (
            ("a", "https://one:1"),
            ("b", "https://two:1"),
            ("c", "https://one:1/"),
        )
    )
    assert one.store == again.store == "s3://bucket/x https://one:1"
    assert one.store != other.store
    assert parse("valkey://10.0.0.1:6379?policy=none").store == "valkey://10.0.0.1:6379"
    bucket = "s3://bucket/x?endpoint=https://"
    assert len(parse_all([f"{bucket}one:1", f"{bucket}two:1"])) == 2
    with pytest.raises(ConfigError, match="are at one place"):
        parse_all([f"{bucket}one:1", f"{bucket}one:1/"])
