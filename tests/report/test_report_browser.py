"""The report in a real browser."""

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
