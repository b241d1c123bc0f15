"""Headless Chromium, and a page that is open in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

DRIVER = "chromedriver"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
OPTIONS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1400,900",
)

PALE = """
const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const channels = (colour) => {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data];
};
const luminance = (colour) => channels(colour).slice(0, 3).map((value) => value / 255)
  .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, at) => sum + [0.2126, 0.7152, 0.0722][at] * value, 0);
const behind = (each) => !each ? getComputedStyle(document.documentElement).backgroundColor
  : channels(getComputedStyle(each).backgroundColor)[3] === 255
    ? getComputedStyle(each).backgroundColor : behind(each.parentElement);
const isText = (each) => each.checkVisibility() && (each.matches("input:not([type=range]), select")
  || [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
return [...document.querySelectorAll("body *")].filter(isText).filter((each) => {
  const style = getComputedStyle(each);
  const ink = each.ownerSVGElement ? style.fill : style.color;
  const [high, low] = [ink, behind(each)].map(luminance).sort((one, other) => other - one);
  return (high + 0.05) / (low + 0.05) < 4.5;
}).map((each) => `${each.tagName} ${each.className} ${each.textContent.slice(0, 40)}`);
"""


LOOK = 0.02
"""Seconds between looks at whether a page's scripts run."""


def is_installed() -> bool:
    """True if a browser and its driver are on the path."""
    return bool(CHROMIUM and shutil.which(DRIVER))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of one's own."""
    from selenium import webdriver

    with TemporaryDirectory() as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for option in (*OPTIONS, f"user-data-dir={folder}"):
            options.add_argument(f"--{option}")
        service = webdriver.ChromeService(executable_path=shutil.which(DRIVER))
        started = webdriver.Chrome(options=options, service=service)
        started.set_script_timeout(60)
        try:
            yield started
        finally:
            started.quit()


class Page:
    """A page that is open in the browser, and loaded."""

    def __init__(self, driver: Any, address: str) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        self.driver = driver
        driver.get("about:blank")  # an address that differs in its fragment alone loads nothing
        driver.get(address)
        # On a busy machine the driver may return before the page's scripts have run.
        WebDriverWait(driver, 60, LOOK).until(lambda _: self.get("typeof bfpp") == "object")
        self.settle("bfpp.ready")

    def settle(self, promise: str) -> None:
        """Wait for a promise of the page, and what it has yet to draw; fail where it is broken."""
        outcome = self.driver.execute_async_script(
            "const done = arguments[0];"
            "const frame = () => new Promise(requestAnimationFrame);"
            f"({promise}).then(frame).then(frame)"
            ".then(() => done('kept'), (error) => done(error.stack))"
        )
        assert outcome == "kept"

    def get(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def mouse(self) -> Any:
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver)

    def place_of(self, seconds: float, panel: int = 0) -> tuple[int, int]:
        """Where on the screen a time is, in the compute row of rank 0."""
        x, y = self.get(
            "(([panel, seconds]) => {"
            "const box = panel.figure.getBoundingClientRect(), [first, last] = bfpp.view();"
            "const width = box.width - panel.left - 12;"
            "return [box.left + panel.left + (seconds - first) / (last - first) * width,"
            "box.top + bfpp.topOf(panel) + panel.rows[0].top + panel.rows[0].height / 2];"
            f"}})([bfpp.panels()[{panel}], {seconds}])"
        )
        return round(x), round(y)

    def move_to(self, seconds: float) -> Any:
        """The mouse, on its way to a time in the compute row of rank 0."""
        self.driver.execute_script(
            "scrollBy(0, bfpp.panels()[0].figure.getBoundingClientRect().top - 250)"
        )
        mouse = self.mouse()
        mouse.w3c_actions.pointer_action.move_to_location(*self.place_of(seconds))
        return mouse

    def point_at(self, seconds: float) -> str:
        """The page's text with the pointer at a time, in the compute row of rank 0."""
        self.move_to(seconds).perform()
        words: str = self.find(".tip").text
        return words

    def colour_at(self, seconds: float, row: int = 0) -> str:
        """The colour that the first figure shows at a time, in the middle of one of its rows."""
        channels = self.get(
            "(([panel, seconds, at]) => {"
            "const { canvas, rows, left, figure } = panel, [first, last] = bfpp.view();"
            "const width = figure.clientWidth - left - 12;"
            "const x = left + (seconds - first) / (last - first) * width;"
            "const y = bfpp.topOf(panel) + rows[at].top + rows[at].height - 3;"
            "return [...canvas.getContext('2d').getImageData(Math.floor(x * devicePixelRatio),"
            " Math.floor(y * devicePixelRatio), 1, 1).data].slice(0, 3); })"
            f"([bfpp.panels()[0], {seconds}, {row}])"
        )
        return f"#{bytes(channels).hex()}"

    def complaints(self) -> list[str]:
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]

    def emulate(self, scheme: str = "light", width: int = 1280) -> None:
        """A light or a dark screen of this width; a narrow one is a phone's, which is touched."""
        command, phone = self.driver.execute_cdp_cmd, width < 600
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command("Emulation.setEmulatedMedia", {"features": features})
        screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": phone}
        command("Emulation.setDeviceMetricsOverride", screen)
        command("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        self.settle("bfpp.showStep()")

    def touch(self, *fingers: tuple[tuple[int, int], tuple[int, int]]) -> None:
        """Fingers that are put down, drawn from one place to another in steps, and lifted."""
        for kind, share in (("Start", 0.0), ("Move", 0.5), ("Move", 1.0), ("End", 1.0)):
            points = [
                {"x": x + share * (to_x - x), "y": y + share * (to_y - y), "id": at}
                for at, ((x, y), (to_x, to_y)) in enumerate(fingers)
            ]
            event = {"type": f"touch{kind}", "touchPoints": [] if kind == "End" else points}
            self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", event)
        self.settle("bfpp.show(...bfpp.view())")

    def named(self) -> list[tuple[str, str]]:
        """The role and the name of all that a screen reader finds."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def pale(self) -> list[str]:
        """Texts with less contrast to what is behind them than WCAG's level AA asks for."""
        found: list[str] = self.driver.execute_script(PALE)
        return found
