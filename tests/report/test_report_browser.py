"""The report in a real browser."""

import re

import pytest


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(path)
    return path


def requested_schemes(browser) -> set[str]:
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
    assert browser.value(columns) == (5 if width > 760 else 2)


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


COUNTED = """(() => {
    const canvas = document.querySelectorAll('figure[data-levels] canvas')[%d];
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, place) => place %% 4 === 3 && value === 64).length / (data.length / 4);
})()"""
"""The share of a picture that is tinted as unknown."""


@pytest.fixture
def live(browser, page):
    """The page on a large screen once its script has made it live."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False
    )
    browser.show(page)
    browser.until("document.documentElement.dataset.ready")
    return browser


def moved(browser, selector: str, value: float) -> None:
    """Set a slider as a hand does."""
    browser.value(
        f"(s => {{ s.value = {value}; s.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
        f"(document.querySelector('{selector}'))"
    )


def pressed(browser, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Enter": 13}[key]
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def test_the_slider_shows_what_is_unknown_at_each_threshold(live, scene):
    for name, place in (("GMM", 0), ("softmax", 1)):
        maps = scene.models[name]
        for position in range(3):
            moved(live, ".slider input", position)
            share = float((maps.levels <= position).mean())
            assert live.value(COUNTED % place) == pytest.approx(share, abs=0.002)
            caption = live.value(
                f"document.querySelectorAll('figure[data-levels] output')[{place}].textContent"
            )
            assert caption == f"{100 * share:.1f} % of the picture"
    assert live.value("document.querySelector('.slider output').textContent") == "20 %"
    assert "20 %" in live.value("document.querySelector('.slider p').textContent")
    live.value("document.querySelector('.slider button').click()")
    assert live.value("document.querySelector('.slider input').value") == "1"


def test_the_slider_obeys_the_keyboard(live):
    live.value("document.querySelector('.slider input').focus()")
    before = live.value(COUNTED % 0)
    pressed(live, "ArrowRight")
    live.until("document.querySelector('.slider input').getAttribute('aria-valuetext') === '20 %'")
    assert live.value(COUNTED % 0) > before


def test_pictures_open_are_swiped_over_the_image_zoomed_and_closed(live):
    live.value("document.querySelectorAll('.gallery figure button')[3].focus()")
    live.value("document.querySelectorAll('.gallery figure button')[3].click()")
    assert live.value("document.querySelector('dialog').open")
    clip = "getComputedStyle(document.querySelector('.viewer .after')).clipPath"
    assert live.value(clip) == "inset(0px 0px 0px 50%)"
    moved(live, ".viewer label:nth-child(1) input", 80)
    assert live.value(clip) == "inset(0px 0px 0px 80%)"
    box = "document.querySelector('.viewer .stage').getBoundingClientRect()"
    x, y, width = (live.value(f"{box}.{part}") for part in ("left", "top", "width"))
    for kind in ("mousePressed", "mouseReleased"):
        at = {"x": x + width / 4, "y": y + 20, "button": "left", "buttons": 1, "clickCount": 1}
        live.call("Input.dispatchMouseEvent", type=kind, **at)
    assert live.value(clip) == "inset(0px 0px 0px 25%)", "the line follows the hand"
    moved(live, ".viewer label:nth-child(2) input", 4)
    assert live.value(f"{box}.width") == pytest.approx(4 * width, rel=0.01)
    scrolls = "document.querySelector('.viewer .scroll')"
    assert live.value(f"{scrolls}.scrollWidth > {scrolls}.clientWidth"), "the rest is reached by scrolling"
    assert live.value("document.querySelector('.viewer label:nth-child(3)').hidden"), "no threshold in it"
    pressed(live, "Escape")
    live.until("!document.querySelector('dialog').open")
    assert live.value("document.activeElement === document.querySelectorAll('.gallery figure button')[3]")


def test_the_threshold_moves_in_the_large_picture_and_in_the_page_together(live):
    live.value("document.querySelector('figure[data-levels] button').click()")
    moved(live, ".viewer label:nth-child(3) input", 2)
    assert live.value("document.querySelector('.slider input').value") == "2"
    assert "20 %" in live.value("document.querySelector('.viewer p').textContent")
    title = live.value("document.querySelector('.viewer h2').textContent")
    assert re.fullmatch(r"scene 12 · GMM: what is unknown, [\d.]+ % of the picture", title)
    live.value("document.querySelectorAll('.viewer .bar button')[1].click()")
    assert "labels" in live.value("document.querySelector('.viewer h2').textContent"), "the next picture"
    live.value("document.querySelector('dialog').close()")
    moved(live, ".slider input", 0)
    assert live.value("document.querySelector('.viewer label:nth-child(3) input').value") == "2", (
        "closed, it rests"
    )
    assert live.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    assert requested_schemes(live) <= {"file", "data"}


def test_the_policy_stops_scripts_and_requests_that_somebody_puts_in(browser, report, tmp_path):
    injected = tmp_path / "injected.html"
    evil = "<script>document.title = 'taken'</script><img src='http://127.0.0.1:9/x.png' onerror='a()'>"
    injected.write_text(report.html().replace("</main>", f"{evil}</main>"))
    browser.show(injected)
    browser.until("document.documentElement.dataset.ready", seconds=20)
    assert browser.value("document.title") == report.title
    refused = [entry["entry"]["text"] for entry in browser.of("Log.entryAdded")]
    assert any("inline script" in text for text in refused)
    assert any("127.0.0.1" in text and "Content Security Policy" in text for text in refused)
    answered = [event["response"]["url"] for event in browser.of("Network.responseReceived")]
    assert not any(url.startswith("http") for url in answered)
    changed = tmp_path / "changed.html"
    changed.write_text(report.html().replace('"use strict";', '"use strict"; document.title = "taken";'))
    browser.show(changed)
    assert browser.value("document.title") == report.title, "one letter more, and it is another script"


def test_without_scripts_every_picture_is_there_and_no_dead_slider(browser, page):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.show(page)
        assert browser.value("document.documentElement.dataset.ready") is None
        assert browser.value("getComputedStyle(document.querySelector('.slider')).display") == "none"
        assert browser.value("document.querySelectorAll('.gallery img').length") == 11
        assert browser.value("document.querySelectorAll('.gallery button, canvas, dialog').length") == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_print_is_on_white_without_controls_and_without_boxes_that_scroll(live):
    live.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    try:
        assert live.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for selector in ("nav", ".slider"):
            assert live.value(f"getComputedStyle(document.querySelector('{selector}')).display") == "none"
        assert live.value("getComputedStyle(document.querySelector('.table')).overflowX") == "visible"
        live.call(
            "Emulation.setDeviceMetricsOverride", width=720, height=900, deviceScaleFactor=1, mobile=False
        )
        assert live.value("document.documentElement.scrollWidth") <= 720, "as wide as a sheet of paper"
        paper = live.call("Page.printToPDF", printBackground=True)["data"]
        assert len(paper) > 50_000
    finally:
        live.call("Emulation.setEmulatedMedia", media="", features=[])
