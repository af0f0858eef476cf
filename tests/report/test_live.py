"""The live page: its server, what it refuses, and all of it in a real browser."""

import json
import os
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg.data import Scenes
from gmmseg.inference import FalseAlarms, Predictor, calibrate
from gmmseg.inference.viewing import for_screen

pytest.importorskip("gradio", reason="the page needs the extra app")
from gmmseg.report.live import Example, LivePage, Session, serving

SCENES = Scenes("val", size=(32, 48), length=19)


def made(seed, calibrated=True):
    torch.manual_seed(seed)
    model = gmmseg.build("tiny_unet", num_classes=10, head="softmax").eval()
    model.label_names = SCENES.label_space.names
    predictor = Predictor(model)
    if calibrated:
        model.calibration = calibrate(predictor, SCENES, false_alarms=FalseAlarms(0.1))
    return predictor


@pytest.fixture(scope="module")
def live():
    return LivePage({"first": made(0), "second": made(1)}, [Example(SCENES[0].image, "a scene")])


@pytest.fixture(scope="module")
def served(live, tmp_path_factory):
    """Address of the page, and the folder it was started in."""
    place, before = tmp_path_factory.mktemp("started"), Path.cwd()
    os.chdir(place)
    with serving(live, "127.0.0.1", None) as address:
        yield address, place
    os.chdir(before)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Good and bad uploads by name."""
    folder = tmp_path_factory.mktemp("uploads")
    picture = Image.fromarray(SCENES[1].image.movedim(0, -1).numpy())
    picture.save(folder / "good.png")
    frames = [Image.new("RGB", (48, 32), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    (folder / "<b>words.txt").write_text("no image")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:300])
    Image.new("1", (9000, 9000)).save(folder / "huge.png")
    (folder / "empty.jpg").write_bytes(b"")
    return folder


def shown(update):
    session, said = update[0], update[2]
    return session, said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("<b>words.txt", "&lt;b&gt;words.txt: not a readable image"),
        ("cut.png", "cut.png: not a readable image, broken or cut off"),
        ("huge.png", "9000x9000 = 81,000,000 pixels exceed the limit of 67,108,864; make it smaller"),
        ("empty.jpg", "empty.jpg: not a readable image"),
        ("gone.png", "gone.png: "),
    ],
)
def test_what_is_no_image_becomes_a_message(live, files, name, words):
    session, said = shown(live.upload(str(files / name)))
    assert session is None
    assert words in said
    assert 'role="alert"' in said
    assert "predict" not in said, "a page has no options of a command"
    assert str(files) not in said, "where the server keeps files is nobody's business"


def test_of_an_animation_the_first_frame_is_taken(live, files):
    session, said = shown(live.upload(str(files / "animated.gif")))
    assert isinstance(session, Session)
    assert said == ""
    assert (session.any_view.photograph == (255, 0, 0)).all()


def test_models_their_promises_and_classes_are_named_before_there_is_an_image(live, files):
    slider = live.slider_before_image()
    assert (slider.minimum, slider.maximum, slider.value) == (5.0, 25.0, 10.0)
    assert slider.label == "False alarms promised, % of known pixels"
    for name, predictor in live.predictors.items():
        line = live.line_before_image(name)
        assert f"<strong>{name}</strong> · threshold {predictor.calibration.threshold:.4g}<br>" in line
        assert "at most 10 % of the known pixels" in line
        assert "road" in live.legend(name)
    _, _, line, *_ = live.slide(20.0, None, None)
    assert "at most 20 % of the known pixels" in line
    curve = live.predictors["first"].calibration.false_alarms["pixel"]
    assert f"threshold {curve.threshold(0.2):.4g}" in line
    session, _ = shown(live.upload(str(files / "good.png")))
    assert session.scale == live.scale_before_image
    cleared = live.upload(None)
    assert cleared[3].value == 10.0
    assert cleared[7] == live.line_before_image("first")


def test_without_calibration_the_slider_waits_for_an_image_which_the_line_says_nothing_of():
    alone = LivePage({"plain": made(0, calibrated=False)})
    assert not alone.slider_before_image().interactive
    words = "plain</strong> · no threshold<br>The threshold promises nothing"
    assert words in alone.line_before_image("plain")
    beside = LivePage({"plain": made(0, calibrated=False), "good": made(1)})
    assert beside.slider_before_image().value == 10.0
    assert words in beside.line_before_image("plain")
    several = LivePage({"plain": made(0, calibrated=False), "other": made(1, calibrated=False)})
    assert several.slider_before_image().label == "Strangest pixels of this picture, %"


def test_a_model_that_is_not_calibrated_says_so_and_has_a_raw_slider(files):
    page = LivePage({"plain": made(0, calibrated=False)})
    update = page.upload(str(files / "good.png"))
    session, line = update[0], update[7]
    assert session.scale.unit == "raw"
    assert "promises nothing, since the model is not calibrated" in line
    middle = float(np.median(session.any_view.anomaly))
    _, _, line, _ = page.slide(middle, session, None)
    assert "50.0" in line or "49.9" in line


def test_moving_the_slider_changes_what_is_unknown_as_promised(live, files):
    session, _ = shown(live.upload(str(files / "good.png")))
    seen = session.views["first"]
    assert session.thresholds(session.scale.start)["first"] == seen.meaning.calibration.threshold
    _, bars, line, *_ = live.slide(25.0, session, None)
    assert bars == "", "nothing was clicked"
    threshold = session.thresholds(25.0)["first"]
    assert "at most 25 % of the known pixels" in line
    assert seen.meaning.calibration.false_alarm_rate(threshold) <= 0.25
    assert f"{100 * seen.above(threshold).mean():.2f} % of this picture" in line


def test_what_is_said_of_a_clicked_pixel_follows_the_slider(live, files):
    session, _ = shown(live.upload(str(files / "good.png")))
    seen = session.views["first"]
    low, high = (session.thresholds(position)["first"] for position in (session.scale.start, 25.0))
    changing = np.argwhere((seen.anomaly <= low) & (seen.anomaly > high))
    y, x = (int(each) for each in changing[len(changing) // 2])
    height, width = seen.anomaly.shape
    wide, tall = for_screen(Image.fromarray(seen.photograph)).size
    place = ((x + 0.5) * wide / width, (y + 0.5) * tall / height)
    _, bars, clicked = live.click(session.scale.start, session, SimpleNamespace(index=place))
    assert (clicked.x, clicked.y) == (x, y)
    first = bars.split("second")[0]
    assert "known" in first
    assert "unknown" not in first
    _, bars, *_ = live.slide(25.0, session, clicked)
    assert "unknown" in bars.split("second")[0]


def answer(address, body=None):
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_nothing_outside_the_temporary_folder_is_served(served, files, tmp_path):
    address, place = served
    secret = place / "secret.txt"
    secret.write_text("mine")
    inside = os.environ["GRADIO_TEMP_DIR"]
    for path in (
        "/etc/passwd", str(secret), "secret.txt",
        f"{inside}/../../etc/passwd", f"{inside}/%2e%2e/%2e%2e/etc/passwd",
        str(Path(gmmseg.__file__)), "http://127.0.0.1:9/x", "https://example.org/x",
    ):  # fmt: skip
        for form in (f"gradio_api/file={path}", f"file={path}", f"gradio_api/file/{path}"):
            code, content = answer(address + form)
            assert code in (403, 404), (form, code)
            assert b"mine" not in content
            assert b"root:" not in content
    secret.unlink()


@pytest.mark.parametrize(
    "path", ["http://example.org/x.png", "hTTps://example.org/x.png", "\\u0068ttp://a/b"]
)
def test_files_of_other_machines_are_not_fetched(served, path):
    file = f'{{"path": "{path}", "meta": {{"_type": "gradio.FileData"}}}}'
    body = f'{{"data": [{file}], "fn_index": 0, "session_hash": "x"}}'
    for place in ("gradio_api/queue/join", "gradio_api/run/predict", "gradio_api/api/upload"):
        assert answer(served[0] + place, body.encode())[0] == 403


def test_nothing_is_left_behind(live, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    with serving(live, "127.0.0.1", None) as address:
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        session, _ = shown(live.upload(str(files / "good.png")))
        live.save(10.0, session)
        assert list(folder.rglob("results.zip"))
        assert address.startswith("http://127.0.0.1:")
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == before


def put(browser, file):
    """Choose a file in the page's upload field."""
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#upload input[type=file]")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])


def text(browser, name):
    return browser.value(f"document.querySelector('#{name}').innerText")


SLIDE = """(() => {
  const field = document.querySelector('#threshold input[type=number]');
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, '25');
  for (const kind of ['input', 'change', 'blur']) field.dispatchEvent(new Event(kind, {bubbles: true}));
})()"""


def test_upload_slide_click_and_download(browser, served, files, tmp_path):
    address, place = served
    browser.open(address)
    browser.until("document.querySelectorAll('#upload input[type=file]').length")
    assert "at most 10 % of the known pixels" in text(browser, "line-1")
    assert text(browser, "legend-1").startswith("road\n")
    browser.value(SLIDE)
    browser.until("document.querySelector('#line-1').innerText.includes('at most 25 %')")
    put(browser, files / "<b>words.txt")
    browser.until("document.querySelector('#status .alert')")
    assert "words.txt: not a readable image" in text(browser, "status")  # the server simplifies names
    browser.value("document.querySelector('#upload button[aria-label=Clear]')?.click()")
    browser.until("!document.querySelector('#status .alert') && document.querySelector('#upload input')")

    put(browser, files / "good.png")
    browser.until("document.querySelector('#unknown-1 img')?.complete")
    assert "at most 10 % of the known pixels" in text(browser, "line-0")
    assert text(browser, "legend-0").startswith("road\n")
    assert browser.value("document.querySelector('#threshold .reset-button')") is None, "it would go to zero"
    before = browser.value("document.querySelector('#unknown-0 img').src")

    browser.value(SLIDE)
    browser.until("document.querySelector('#line-0').innerText.includes('at most 25 %')")
    browser.until(f"document.querySelector('#unknown-0 img').src != {json.dumps(before)}")

    x, y = browser.value(
        "(() => { const picture = document.querySelector('#anomaly-0 img');"
        "picture.scrollIntoView({block: 'center'}); const box = picture.getBoundingClientRect();"
        "return [box.left + box.width * 0.7, box.top + box.height * 0.3] })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.until("document.querySelectorAll('#pixel .bars').length == 2")
    place_of = text(browser, "pixel").split("\n")[0].removeprefix("Pixel ").split(",")
    assert np.allclose([int(at) for at in place_of], [0.7 * 48, 0.3 * 32], atol=1.5)
    assert "p-value" in text(browser, "pixel")

    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.value("document.querySelector('#save').click()")
    browser.until("document.querySelector('#saved a[href]')")
    browser.value("document.querySelector('#saved a[href]').click()")
    zipped = tmp_path / "results.zip"
    deadline = time.monotonic() + 30
    while not zipped.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with zipfile.ZipFile(zipped) as file:
        assert set(json.loads(file.read("results.json"))) == {"first", "second"}
        assert len(file.namelist()) == 1 + 2 * 8

    requested = {event["request"]["url"] for event in browser.of("Network.requestWillBeSent")}
    outside = [url for url in requested if not url.startswith((address, "data:", "blob:"))]
    assert outside == [], "a request would have left the machine"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_the_window(browser, served, width):
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
    )
    browser.open(served[0])
    browser.until("document.querySelectorAll('#examples img').length")
    browser.value("document.querySelector('#examples button img').click()")
    browser.until("document.querySelector('#unknown-1 img')?.complete")
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.picture img, .legend li, .remark')]"
    assert browser.value(wide + ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length") == 0
