"""Options of each kind: places are checked, each default is what the option itself would read."""

import pytest

from protocol.errors import ConfigError
from server import tieroptions
from server.tieroptions import KINDS


@pytest.mark.parametrize(
    "text", ["localhost:1", "10.0.0.1:65535", "[::1]:6379", "a_b.c-d:50051", "host:1/"]
)
def test_one_place(text: str) -> None:
    assert tieroptions.authorities("k", text, is_many=False) == text.rstrip("/")


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "ho st:1", "-a:1", "a:1,b:2", "a:x"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"k='.*expected host:port$"):
        tieroptions.authorities("k", text, is_many=False)


def test_several_places_where_there_may_be_several() -> None:
    assert tieroptions.authorities("k", "a:1,b:2", is_many=True) == "a:1,b:2"
    with pytest.raises(ConfigError, match="or several with commas"):
        tieroptions.authorities("k", "a:1,,b:2", is_many=True)


@pytest.mark.parametrize("text", ["abc", "my.bucket-1/deep/prefix", "abc/"])
def test_a_bucket(text: str) -> None:
    assert tieroptions.bucket("k", text) == text.rstrip("/")


@pytest.mark.parametrize("text", ["", "ab", "ABC", "a" * 64, "abc//x", "-abc", "abc/a b"])
def test_what_is_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="name of a bucket"):
        tieroptions.bucket("k", text)


def test_a_path_that_may_be_the_secret_itself_is_not_shown() -> None:
    assert tieroptions.secret_path("k", "/run/secret") == "/run/secret"
    with pytest.raises(ConfigError) as caught:
        tieroptions.secret_path("k", "hunter2")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.detail)


@pytest.mark.parametrize("kind", KINDS)
def test_every_default_is_a_value_of_its_option(kind: str) -> None:
    for name, option in KINDS[kind].options.items():
        if option.default in (None, ""):
            continue
        text = {True: "yes", False: "no"}.get(option.default, str(option.default))  # type: ignore[call-overload]
        if isinstance(option.default, int) and not isinstance(option.default, bool):
            text = str(option.default)
        assert option.read(name, text) == option.default


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:9000", True),
        ("http://127.8.0.1", True),
        ("http://localhost:9000", True),
        ("http://[::1]:9000", True),
        ("http://10.0.0.1:9000", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
    ],
)
def test_loopback(endpoint: str, expected: bool) -> None:
    assert tieroptions.is_loopback(endpoint) is expected
