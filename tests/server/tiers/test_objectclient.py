"""The client of an S3 tier: never in the clear over a network, credentials as they are given."""

import os
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers.interface import TierError
from server.tiers.objectclient import (
    bucket_of,
    client_of,
    provider_of,
    why_not_answered,
)
from server.tierspec import parse
from tests.stores import s3, tlsproxy
from tests.stores.parts import fetched, filled
from tests.wire.ports import free_port


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    s3.required()


def written(folder: Path, text: str) -> str:
    path = folder / "credentials"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


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


def test_a_store_that_is_not_there_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3.credentials(monkeypatch)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TierError, match=f"s3: bucket: {endpoint}: connections are refused"):
        open_tier(parse(f"s3://bucket?endpoint={endpoint}"))


def test_what_is_behind_an_error() -> None:
    role = "Error performing PUT http://169.254.169.254/latest/api/token in 1 s - HTTP error: x"
    found = why_not_answered(role, {})
    assert found.startswith("no credentials: none found, looked in credentials= (a file), in AWS_")
    asked = "Error performing GET https://store:9000/bucket?x in 1 s - HTTP error: error sending"
    # Through a proxy, a look of our own would say nothing of the way there.
    behind = why_not_answered(asked, {"HTTPS_PROXY": "http://proxy:1"})
    assert behind == "https://store:9000: no answer in time"
    answered = "Error performing GET http://store/bucket in 1 s - status code: 403 Forbidden"
    assert why_not_answered(answered, {}) == ""
    assert why_not_answered("something else", {}) == ""
