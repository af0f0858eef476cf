"""The report in a real browser, spoken to through its debugging pipe."""

import json
import os
import shutil
import subprocess
import time

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One page of Chromium; ``events`` holds all it reported."""

    def __init__(self, program: str, folder) -> None:
        read_commands, self._commands = os.pipe()
        self._replies, write_replies = os.pipe()

        def connect() -> None:
            # The browser reads commands from descriptor 3 and writes replies to 4.
            os.dup2(read_commands, 60)
            os.dup2(write_replies, 61)
            os.dup2(60, 3)
            os.dup2(61, 4)

        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=connect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_commands)
        os.close(write_replies)
        os.set_blocking(self._replies, False)
        self.events: list[dict] = []
        self._count, self._buffer, self._session = 0, b"", None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """The result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        reply = self._wait(lambda message, number=self._count: message.get("id") == number)
        assert "error" not in reply, reply
        return reply["result"]

    def show(self, path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression: str):
        """What a JavaScript expression evaluates to in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def of(self, *methods: str) -> list[dict]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _wait(self, wanted) -> dict:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                self.events.append(message)
                if wanted(message):
                    return message
            try:
                self._buffer += os.read(self._replies, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        raise TimeoutError("the browser did not answer within 30 seconds")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._replies)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(
            "no Chromium on this machine: install the package chromium to check the report in a browser"
        )
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(path)
    return path


def requested_schemes(browser: Browser) -> set[str]:
    return {event["request"]["url"].split(":", 1)[0] for event in browser.of("Network.requestWillBeSent")}


def test_no_console_messages_and_no_requests(browser, page):
    browser.show(page)
    browser.value("window.scrollTo(0, document.body.scrollHeight)")
    assert browser.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    requested = {
        event["request"]["url"].split(":", 1)[0] for event in browser.of("Network.requestWillBeSent")
    }
    assert requested <= {"file", "data"}
    assert browser.value("[...document.images].every(i => (i.loading = 'eager', i.src.startsWith('data:')))")
    assert browser.value("performance.getEntriesByType('resource').every(e => e.name.startsWith('data:'))")


def test_the_check_sees_messages_and_requests(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('oops')</script>")
    browser.show(bad)
    assert browser.of("Runtime.consoleAPICalled")
    assert "http" in requested_schemes(browser)


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out_of_the_window(browser, page, width):
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
    )
    browser.show(page)
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    inside = "[...document.querySelectorAll('section *')].filter(e => !e.closest('.table, svg, pre'))"
    assert (
        browser.value(inside + ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length") == 0
    )
    columns = "getComputedStyle(document.querySelector('.gallery')).gridTemplateColumns.split(' ').length"
    assert browser.value(columns) == (4 if width > 760 else 2)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_charts_stand_out_from_the_paper_in_both_themes(browser, page, theme):
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.show(page)

    def brightness(expression: str) -> float:
        colour = browser.value(expression)
        return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3

    card = brightness("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (card > 200) == (theme == "light")
    for selector, property_ in (("section p", "color"), ("figcaption", "color"), ("svg text", "fill")):
        ink = brightness(f"getComputedStyle(document.querySelector('{selector}')).{property_}")
        assert abs(card - ink) > 100, selector
