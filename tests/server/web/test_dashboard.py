"""The dashboard in a real browser, against a loaded server: narrow and wide, light and dark."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.prefixes import MAX_PREFIXES
from protocol.status import MAX_SLOW
from tests.server.web.browser import CONTRAST, OVERFLOW, Browser, browsing, chromium
from tests.server.web.pageserver import Pages, serving
from tests.server.web.traffic import Script, scripted
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess, wait_until

QUOTA = ("--quota", f"salt/{'5a' * 16}=1M:2M")
GUEST = "<i>guest</i> whose name is rather long, and says little of what it does here"
LOOKS = [(360, 740, False), (360, 740, True), (1280, 900, False), (1280, 900, True)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    pytest.importorskip("selenium.webdriver")  # or the tests are skipped before anything starts
    chromium()
    with (
        tempfile.TemporaryDirectory(prefix="kvk-") as short,
        tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as shared,
    ):
        yield Path(short), Path(shared)


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path]) -> Iterator[ServerProcess]:
    short, shared = folders
    sizes = ("--l1-size", "8M", "--extent-size", "1M", "--l2", f"disk:{short}/l2?size=64M", *QUOTA)
    with ServerProcess(short, shared / "a", *sizes) as made:
        yield made


@pytest.fixture(scope="module")
def served(server: ServerProcess) -> Iterator[tuple[Pages, subprocess.Popen[bytes]]]:
    with serving(server.side_path) as made:
        yield made


@pytest.fixture(scope="module")
def pages(served: tuple[Pages, subprocess.Popen[bytes]]) -> Pages:
    return served[0]


@pytest.fixture(scope="module")
def script(server: ServerProcess, pages: Pages) -> Iterator[Script]:
    """An engine at work while the tests run; its model's name would be markup if trusted."""
    busy = scripted(server, make_namespace(model="<b>some</b>/model"))
    ending = threading.Event()

    def play() -> None:
        seed = 1
        while not ending.wait(0.05):
            busy.play(prompts=3, seed=seed)
            seed = (seed + 2) % 60 + 1

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    yield busy
    ending.set()
    thread.join(20)
    busy.engine.close()


@pytest.fixture(scope="module")
def browser(folders: tuple[Path, Path], script: Script) -> Iterator[Browser]:
    with browsing(folders[0] / "profile") as made:
        yield made


@pytest.fixture(scope="module")
def slow(server: ServerProcess, script: Script) -> int:
    """The message's number of a store that took long, of a client whose name is markup."""
    with Engine(server.url, server.side_path, script.engine.namespace) as guest:
        guest.wire.session.client = GUEST
        guest.wire.hello(guest.welcome.token)
        guest.register()
        children = server.children()
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        try:
            seq = guest.submit_store([os.urandom(16)], [0])
            time.sleep(0.3)
        finally:
            for pid in children:
                os.kill(pid, signal.SIGCONT)
        assert guest.stored(seq).copied == 1
    return seq


def renewed(browser: Browser, script: str) -> object:
    """What a script returns; has the page ask at once, as it does when it comes into view."""
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")
    return browser.run(script)


@pytest.fixture(scope="module")
def page(browser: Browser, pages: Pages, slow: int) -> Browser:
    """The page with two points of the history, so that there are lines to draw."""
    browser.look(1280, 900, is_dark=False)
    browser.driver.get(pages.url)
    drawn = "return document.querySelectorAll('#chart-chunks path.series').length"
    assert wait_until(lambda: renewed(browser, drawn) == 2, 25, every_s=0.5), browser.complaints()
    return browser


@pytest.mark.parametrize(("width", "height", "is_dark"), LOOKS)
def test_it_looks_right(
    page: Browser, build_dir: Path, width: int, height: int, is_dark: bool
) -> None:
    page.look(width, height, is_dark)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 22, 28)") == is_dark, ground
    # Charts are drawn anew for the width.
    charts = (
        "return [...document.querySelectorAll('.chart svg')]"
        ".map((one) => one.viewBox.baseVal.width)"
    )
    assert wait_until(lambda: max(page.run(charts)) <= width, 5, every_s=0.1)
    name = f"dashboard-{width}-{'dark' if is_dark else 'light'}.png"
    page.picture(build_dir / name)
    assert page.run(OVERFLOW) == []
    assert page.run(CONTRAST) == []


def test_it_shows_what_is_there(page: Browser, server: ServerProcess) -> None:
    def text(name: str) -> str:
        return str(page.run(f"return document.getElementById('{name}').innerText"))

    page.look(1280, 900, is_dark=False)
    assert text("state") in ("ready", "not ready")
    assert "L1" in text("tiers")
    assert "disk" in text("tiers")
    assert "tests" in text("engines")
    assert "serving" in text("engines")
    assert "<b>some</b>/model" in text("namespaces")
    assert page.run("return document.querySelectorAll('main b').length") == 2, "tiers' names alone"
    rows = "return [...document.querySelectorAll('#prefixes tbody tr')].map((one) => one.innerText)"
    assert 1 <= len(page.run(rows)) <= MAX_PREFIXES
    assert all("<b>some</b>/model" in row and "12" in row for row in page.run(rows))
    assert "salt" in text("quotas")
    assert "2.0 MiB" in text("quotas")
    assert "LOOKUP" in text("latency")
    assert "loop" in text("checks")
    assert "%" in text("tiles")
    assert str(server.pid) in text("server")


def test_slow_requests_are_told_one_by_one_as_text(page: Browser, slow: int) -> None:
    rows = (
        "return [...document.querySelectorAll('#slow tbody tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.innerText))"
    )
    (row,) = [row for row in page.run(rows) if row[5] == GUEST and row[0] == "STORE"]
    assert row[1].endswith(" ms"), row
    assert row[2].endswith(" ago"), row
    assert row[3:5] == ["1", str(slow)]
    assert all(len(name) == 12 and set(name) <= set("0123456789abcdef") for name in row[6:])
    assert row[7] in page.run("return document.getElementById('namespaces').innerText")
    assert len(page.run(rows)) <= MAX_SLOW
    assert page.run("return document.querySelectorAll('main i').length") == 0


#: The page's answers then have as many slow requests as there can be, each as long as it can be.
LONGEST = """
const real = window.real = window.fetch, long = (length) => "W".repeat(length);
window.fetch = async (...asked) => {
  const told = await (await real(...asked)).json();
  const row = { op: "QUERY_PREFETCH_STATUS", seq: 4294967295, request: "9223372036854775807",
    client: long(128), instance: "a".repeat(32), fingerprint: "b".repeat(12),
    spent_us: 60200000, wait_ms: 60000, age_s: 90000 };
  told.status.slow = Array(16).fill(row);
  return { ok: true, json: async () => told };
};
"""


@pytest.mark.parametrize("width", [360, 1280])
def test_the_longest_slow_requests_fit(page: Browser, build_dir: Path, width: int) -> None:
    page.look(width, 800, is_dark=width == 360)
    page.run(LONGEST)
    try:
        shown = "return document.getElementById('slow').innerText"
        waited = "60.2 s, up to 60.0 s asked for"
        assert wait_until(
            lambda: str(renewed(page, shown)).count(waited) == MAX_SLOW, 10, every_s=0.1
        )
        page.picture(build_dir / f"dashboard-slow-{width}.png")
        assert page.run(OVERFLOW) == []
        assert page.run(CONTRAST) == []
    finally:
        page.run("window.fetch = window.real")


#: The page's answers then tell of five troubles at once.
TROUBLES = """
const real = window.real = window.fetch;
window.fetch = async (...asked) => {
  const told = await (await real(...asked)).json();
  const why = "valkey: 10.0.0.1:6379: connections are refused: nothing listens there";
  told.checks = told.checks.filter((check) => check.name !== "copiers" && check.name !== "tiers");
  told.checks.push({ name: "copiers", good: false, text: "host: copier not answering for 3 s" },
    { name: "tiers", good: false, text: `valkey: down: ${why}` });
  told.remarks = ["operators keep 7.4 MiB of L1's 8 MiB pinned", "tier disk: <b>full</b>"];
  told.status.copiers[0].silent_s = 3.2;
  Object.assign(told.status.tiers[0], { warning: "/" + "x".repeat(200) + ": it is full" });
  const [tier] = told.status.tiers;
  told.status.tiers.push({ ...tier, name: "valkey", state: "down", warning: "", why });
  told.status.tiers.push({ ...tier, name: "s3", warning: "", silent_s: 9.5 });
  const [quota] = told.quotas;
  told.quotas = [...Array(127).fill(quota), { ...quota, tier: "disk", at_limit: true }];
  told.stats.instances = 0;
  return { ok: true, json: async () => told };
};
"""


@pytest.mark.parametrize(("width", "height", "is_dark"), LOOKS)
def test_several_troubles_are_named_above_all_else(
    page: Browser, build_dir: Path, width: int, height: int, is_dark: bool
) -> None:
    def text(name: str) -> str:
        return str(page.run(f"return document.getElementById('{name}').innerText"))

    page.look(width, height, is_dark)
    page.run(TROUBLES)
    try:
        lines = (
            "return [...document.querySelectorAll('#troubles li')]"
            ".map((line) => line.innerText.replace(/\\s+/g, ' '))"
        )
        assert wait_until(lambda: len(renewed(page, lines)) == 4, 10, every_s=0.2)  # type: ignore[arg-type]
        told = page.run(lines)
        assert [line.split()[0] for line in told] == ["wrong", "wrong", "note", "note"]
        assert told[0] == "wrong copiers host: copier not answering for 3 s"
        assert told[3] == "note tier disk: <b>full</b>"
        assert text("state") == "not ready"
        assert page.driver.title == "kvkeep: not ready"
        assert "silent 3 s" in text("copiers")
        tiers = text("tiers")
        assert "nothing listens there" in tiers
        assert "silent 9 s" in tiers
        assert ": it is full" in tiers
        assert " left in the last 5 min" in text("tiles")
        assert "at its limit" in text("quotas").split("1.0 MiB")[0], "it is the first row"
        assert "128 quotas, 112 of them not shown" in text("quotas")
        page.picture(build_dir / f"dashboard-troubles-{width}-{'dark' if is_dark else 'light'}.png")
        assert page.run(OVERFLOW) == []
        assert page.run(CONTRAST) == []
    finally:
        page.run("window.fetch = window.real")
    hidden = "return document.querySelectorAll('#troubles li').length"
    assert wait_until(lambda: renewed(page, hidden) == 0, 15, every_s=0.2)


def test_it_is_accessible_as_far_as_a_program_can_tell(page: Browser) -> None:
    assert page.run("return document.documentElement.lang") == "en"
    pictures = page.run(
        "return [...document.querySelectorAll('svg:not([aria-hidden])')]"
        ".map((one) => [one.getAttribute('role'), one.getAttribute('aria-label')])"
    )
    assert len(pictures) >= 4
    assert all(role == "img" and label for role, label in pictures)
    assert page.run("return [...document.querySelectorAll('table')].every((one) => one.caption)")
    heads = "return [...document.querySelectorAll('th')].every((one) => one.scope)"
    assert page.run(heads)
    meters = page.run(
        "return [...document.querySelectorAll('[role=meter]')]"
        ".map((one) => one.ariaLabel && Number(one.ariaValueNow))"
    )
    assert meters
    assert all(0 <= value <= 100 for value in meters)
    levels = page.run("return [...document.querySelectorAll('h1,h2,h3')].map((one) => one.tagName)")
    assert levels[0] == "H1"
    assert levels.count("H1") == 1
    buttons = page.run(
        "return [...document.querySelectorAll('button')].map((one) => one.ariaPressed)"
    )
    assert sorted(buttons) == ["false", "false", "true"]


def test_another_stretch_of_time_can_be_chosen(page: Browser) -> None:
    ends = "return [...document.querySelectorAll('#chart-ratio text')].slice(-3)[0].textContent"
    before = page.run(ends)
    page.run("document.querySelector('[data-minutes=\"60\"]').click()")
    assert page.run(ends) != before
    assert page.run("return document.querySelector('[data-minutes=\"60\"]').ariaPressed") == "true"


def test_a_pointer_shows_the_values_of_a_moment(page: Browser) -> None:
    page.run(
        "const one = document.querySelector('#chart-ratio svg[role=img]');"
        "const box = one.getBoundingClientRect();"
        "one.dispatchEvent(new PointerEvent('pointermove',"
        " {clientX: box.right - 5, clientY: box.top + 50}));"
    )
    when = page.run("return document.querySelector('#chart-ratio .when').textContent")
    assert when.count(":") == 2


def test_a_server_that_does_not_answer_is_told_plainly(
    page: Browser, server: ServerProcess, build_dir: Path
) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        shown = "return document.getElementById('notice').innerText"
        assert wait_until(lambda: "does not answer" in str(renewed(page, shown)), 15, every_s=0.5)
        assert "is from" in page.run(shown), "of when what is still shown is"
        assert page.run("return document.getElementById('state').innerText") == "no answer"
        assert page.run(CONTRAST) == []
        page.picture(build_dir / "dashboard-no-answer.png")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    hidden = "return document.getElementById('notice').hidden"
    assert wait_until(lambda: renewed(page, hidden), 15, every_s=0.5)


def test_it_asked_nobody_else_and_the_console_is_empty(page: Browser, pages: Pages) -> None:
    assert page.complaints() == []
    asked = page.asked()
    assert len(asked) >= 5
    assert [address for address in asked if not address.startswith(pages.url)] == []


def test_pages_that_ended_are_told_plainly(
    page: Browser, served: tuple[Pages, subprocess.Popen[bytes]]
) -> None:
    served[1].terminate()
    served[1].wait(10)
    shown = "return document.getElementById('notice').innerText"
    assert wait_until(lambda: "gets no answer" in str(renewed(page, shown)), 15, every_s=0.3)
    assert page.run("return document.getElementById('state').innerText") == "no answer"
    assert "tests" in page.run("return document.getElementById('engines').innerText")
