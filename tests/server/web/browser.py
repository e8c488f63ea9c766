"""A real headless Chromium for tests: what a page shows, asks for and complains of.

Knows selenium and the browser's own protocol, nothing of the page. Runs in the pytest process.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)

# Contrast of each visible text with what lies behind it, as WCAG 2 counts it; below 4.5 is told.
CONTRAST = """
const luminance = (rgb) => {
  const part = (value) =>
    (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(rgb[0]) + 0.7152 * part(rgb[1]) + 0.0722 * part(rgb[2]);
};
const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return parse(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
};
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !element.checkVisibility()) continue;
  const inPicture = element instanceof SVGElement;
  const style = getComputedStyle(element);
  const fore = parse(inPicture ? style.fill : style.color), back = ground(element);
  const [low, high] = [luminance(fore), luminance(back)].sort((one, other) => one - other);
  const contrast = (high + 0.05) / (low + 0.05);
  if (contrast < 4.5) found.push([walk.currentNode.textContent.trim(), contrast, style.color]);
}
return found;
"""

# What is wider than the window.
OVERFLOW = """
const most = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= most) return [];
return [...document.querySelectorAll('body *')]
  .filter((element) => element.getBoundingClientRect().right > most + 0.5)
  .map((element) => element.tagName + '.' + element.getAttribute('class'));
"""


class Browser:
    """One window.

    Args:
        driver: of selenium.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int, height: int, is_dark: bool) -> None:
        """Makes the window so wide and so high, in the light or the dark."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str) -> Any:
        """What a function body in the page returns."""
        return self.driver.execute_script(script)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the console has said since the last call, warnings and errors."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def asked(self) -> list[str]:
        """Addresses that the page has asked for since the last call."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


def chromium() -> tuple[str, str]:
    """Paths of the browser and its driver; the test is skipped without them.

    In CI they may not be missing.
    """
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if not all(found):
        assert os.environ.get("CI") != "true", "chromium and chromium-driver are missing"
        pytest.skip("no chromium and chromedriver on this machine")
    return str(found[0]), str(found[1])


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A window of a browser of its own, closed when the block is left.

    Args:
        folder: empty; the browser's profile goes there.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver_path = chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver_path)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(20)
        driver.get("about:blank")
        made = Browser(driver)
        made.asked()  # what the browser shows by itself, before the test's own page
        yield made
    finally:
        driver.quit()
