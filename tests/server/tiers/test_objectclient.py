"""The client of an S3 tier: never in the clear over a network, credentials as they are given."""

import os
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers.interface import TierError
from server.tiers.objectclient import bucket_of, client_of, is_loopback, provider_of
from server.tierspec import parse
from tests.stores import s3, tlsproxy
from tests.stores.parts import fetched, filled


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    s3.required()


def written(folder: Path, text: str) -> str:
    path = folder / "credentials"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


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
    assert is_loopback(endpoint) is expected


def test_in_the_clear_only_here_or_when_it_is_said() -> None:
    with pytest.raises(TierError, match="expected an https endpoint, or insecure=yes"):
        client_of(parse("s3://bucket?endpoint=http://store.example.org"))
    assert client_of(parse("s3://bucket?endpoint=http://store.example.org&insecure=yes"))
    assert client_of(parse("s3://bucket?endpoint=https://store.example.org&style=virtual"))
    assert client_of(parse("s3://bucket/a/prefix"))


def test_bucket_and_prefix() -> None:
    assert bucket_of(parse("s3://bucket/a/prefix/")) == ("bucket", "a/prefix")
    assert bucket_of(parse("s3://bucket")) == ("bucket", "")


def test_credentials_of_the_environment() -> None:
    assert provider_of("", {}) is None
    provider = provider_of("", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    assert provider is not None
    assert provider() == {
        "access_key_id": "a",
        "secret_access_key": "b",
        "token": None,
        "expires_at": None,
    }
    with pytest.raises(TierError, match="both of"):
        provider_of("", {"AWS_SESSION_TOKEN": "c"})


def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, "access_key_id=a\nsecret_access_key=b\nsession_token=c\n")
    # Nothing of the environment is mixed into it.
    provider = provider_of(path, {"AWS_ACCESS_KEY_ID": "other"})
    assert provider is not None
    first = provider()
    assert [first[key] for key in ("access_key_id", "secret_access_key", "token")] == [
        "a",
        "b",
        "c",
    ]
    assert first["expires_at"].tzinfo is not None
    written(tmp_path, "access_key_id=d\nsecret_access_key=e\n")
    assert [provider()[key] for key in ("access_key_id", "token")] == ["d", None]
    os.unlink(path)
    assert provider()["access_key_id"] == "d"


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="both of access_key_id and secret_access_key"):
        provider_of(written(tmp_path, "access_key_id=a\n"), {})


@tlsproxy.needs_openssl
def test_a_real_store_with_a_file_and_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"access_key_id={s3.ACCESS_KEY}\nsecret_access_key={s3.SECRET_KEY}\n"
    path = written(tmp_path, text)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    authority = tlsproxy.certified(tmp_path)
    with s3.weed(tmp_path / "weed") as weed:
        clear = f"s3://{s3.BUCKET}?endpoint=http://127.0.0.1:{weed.port}&credentials={path}"
        tier = open_tier(parse(clear))
        assert tier.batch_put(filled(1)) == [Status.OK]
        tier.close()
        with tlsproxy.before(weed.port, tmp_path) as port:
            url = f"s3://{s3.BUCKET}?endpoint=https://localhost:{port}&credentials={path}"
            with pytest.raises(TierError):  # the system does not know that authority
                open_tier(parse(url))
            monkeypatch.setenv("SSL_CERT_FILE", str(authority))
            tier = open_tier(parse(url))
            assert tier.batch_put(filled(2)) == [Status.OK]
            assert fetched(tier, 1, 2) == [Status.OK] * 2
            tier.close()
