"""Paths, methods and headers of the pages, without a socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.web.history import History
from server.web.listen import Listen
from server.web.pages import HEADERS, Pages
from server.web.watch import View
from tests.server.web.answers import answer, silent, status, view

GOOD = {"extents": 1, "requests": 5}


class Client:
    """Asks an application as a WSGI server does."""

    def __init__(self, told: View, listen: str = "127.0.0.1") -> None:
        self.history = History()
        self.history.note(answer(GOOD, status()))
        self.asked = 0

        def viewed() -> View:
            self.asked += 1
            return told

        self.pages = Pages(Listen(listen, 9177), viewed, self.history)
        self.headers: dict[str, str] = {}

    def get(
        self, path: str, method: str = "GET", query: str = "", host: str = "localhost:9177"
    ) -> tuple[int, bytes]:
        codes: list[int] = []

        def start(line: str, headers: list[tuple[str, str]]) -> None:
            codes.append(int(line.split()[0]))
            assert len({name for name, _ in headers}) == len(headers)
            self.headers = dict(headers)

        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
        environ |= {"QUERY_STRING": query, "HTTP_HOST": host}
        content = b"".join(self.pages(environ, start))
        return codes[0], content


@pytest.fixture
def client() -> Client:
    return Client(view(GOOD, status()))


PATHS = ["/", "/dashboard.css", "/dashboard.js", "/charts.js", "/icon.svg", "/metrics"]
PATHS += ["/healthz", "/readyz", "/api/status"]


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_its_headers_and_head_has_no_content(client: Client, path: str) -> None:
    code, content = client.get(path)
    assert (code, int(client.headers["Content-Length"])) == (200, len(content))
    assert content
    assert all(client.headers[name] == value for name, value in HEADERS)
    assert client.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert client.get(path, "HEAD") == (200, b"")
    assert int(client.headers["Content-Length"]) > 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", ""])
def test_nothing_can_be_changed(client: Client, method: str) -> None:
    assert client.get("/", method)[0] == 405
    assert client.headers["Allow"] == "GET, HEAD"
    assert client.asked == 0


@pytest.mark.parametrize(
    "path", ["", "/x", "/data/index.html", "/../pages.py", "/api", "//", "/%2e"]
)
def test_other_paths_are_not_there(client: Client, path: str) -> None:
    assert client.get(path)[0] == 404


def test_another_servers_name_is_refused_on_loopback(client: Client) -> None:
    for path in PATHS:
        assert client.get(path, host="evil.example:9177")[0] == 403
        assert client.get(path, host="")[0] == 403
    assert client.asked == 0
    assert Client(view(GOOD, status()), "0.0.0.0").get("/metrics", host="node-7:9177")[0] == 200


def test_more_fields_than_anybody_needs_are_the_askers_fault(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/metrics", "/readyz", "/api/status"):
        code, content = client.get(path, query="&".join(["x=1"] * 17))
        assert (code, content) == (400, b"at most 16 fields behind the ?\n")
    assert client.asked == 0
    assert not caplog.records  # or whoever asks so would fill the log
    assert client.get("/metrics", query="&".join(["x=1"] * 16))[0] == 200


def test_health_says_200_or_503_and_why() -> None:
    good = Client(view(GOOD, status()))
    assert json.loads(good.get("/healthz")[1])["status"] == "ok"
    assert json.loads(good.get("/readyz")[1])["why"] == []
    bad = Client(silent("it did not answer in time"))
    for path in ("/healthz", "/readyz"):
        code, content = bad.get(path)
        assert code == 503
        told = json.loads(content)
        assert told["status"] == "failed"
        assert told["why"] == ["loop: the server does not answer: it did not answer in time"]


def test_checks_that_are_left_out_must_be_known(client: Client) -> None:
    assert client.get("/readyz", query="exclude=tiers&exclude=arena")[0] == 200
    code, content = client.get("/readyz", query="exclude=tier")
    assert code == 400
    assert b"tiers" in content


def test_metrics_of_a_server_that_does_not_answer_are_still_an_answer() -> None:
    code, content = Client(silent()).get("/metrics")
    assert code == 200
    assert b"kvkeep_up 0.0" in content


@pytest.mark.parametrize(
    ("query", "points"), [("", 1), ("since=0", 1), ("since=1000001000.5", 0), ("since=1.25", 1)]
)
def test_later_points_of_the_history(client: Client, query: str, points: int) -> None:
    code, content = client.get("/api/status", query=query)
    assert code == 200
    assert len(json.loads(content)["history"]["points"]) == points


@pytest.mark.parametrize("since", ["-1", "x", "1e9", "1.", "9" * 20, "nan", "%00"])
def test_a_moment_that_is_none_is_refused(client: Client, since: str) -> None:
    assert client.get("/api/status", query=f"since={since}")[0] == 400


def test_a_fault_is_answered_with_500_and_no_inside() -> None:
    def fails() -> View:
        raise RuntimeError("secret inside")

    broken = Client(view())
    broken.pages = Pages(Listen("127.0.0.1", 1), fails, History())
    code, content = broken.get("/metrics")
    assert code == 500
    assert b"secret" not in content
