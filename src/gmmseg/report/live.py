"""The live page, through gradio: an image comes in, pictures and numbers of several models go out.

Everything stays on the machine: no telemetry, no fonts or scripts from elsewhere, and files are written to
and served from one temporary folder alone.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict

import gradio as gr
import numpy as np
from PIL import Image
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from gmmseg.images import ImageError, load_image
from gmmseg.inference import Exemplar, Explanation, Predictor, explain
from gmmseg.inference.threshold_scale import (
    ThresholdScale,
    no_promise,
    scale_of_any_picture,
    threshold_scale,
)
from gmmseg.inference.viewing import (
    ImageView,
    archive,
    for_screen,
    marked,
    panels,
    pixel_at,
    unknown_panel,
    view,
)
from gmmseg.report import fragments
from gmmseg.report.fragments import ClickedPixel

PARTS = ("labels", "confidence", "anomaly", "unknown")
LARGEST_FILE = "256mb"
_INTRODUCTION = (
    "Drop an image or pick an example. The slider chooses from which score on a pixel is unknown. "
    "A click on any picture shows what the models say of that pixel."
)
_TO_THE_BARS = "() => document.getElementById('pixel').scrollIntoView({block: 'nearest'})"


class _Private(TypedDict):
    """How every event is handled: no endpoint for others, and one at a time."""

    api_visibility: Literal["private"]
    concurrency_id: str
    concurrency_limit: int


_PRIVATE: _Private = {"api_visibility": "private", "concurrency_id": "models", "concurrency_limit": 1}


@dataclass(frozen=True)
class Example:
    """An image to pick: pixels (3 h w) uint8 and what to call it."""

    image: Tensor
    name: str


@dataclass(frozen=True, eq=False)
class Session:
    """The image somebody looks at, (3 h w) in [0, 1], and what each model makes of it."""

    pixels: Tensor
    views: Mapping[str, ImageView]
    scale: ThresholdScale

    @property
    def any_view(self) -> ImageView:
        return next(iter(self.views.values()))

    def thresholds(self, value: float) -> dict[str, float | None]:
        """The threshold of each model with the slider at ``value``."""
        return {
            name: self.scale.threshold(value, seen.meaning.calibration, seen.anomaly)
            for name, seen in self.views.items()
        }


@dataclass(frozen=True, eq=False)
class Clicked:
    """The pixel that somebody clicked, and each model's explanation of it."""

    x: int
    y: int
    found: Mapping[str, Explanation]


Update = object
"""What gradio takes for one component: a value, or a component with new properties."""


@dataclass(frozen=True, eq=False)
class LivePage:
    """The models by name and the examples; its methods are what happens on the page.

    ``exemplars``: by name of a model, training pixels of its components, where there is an index of them.
    """

    predictors: Mapping[str, Predictor]
    examples: Sequence[Example] = field(default=())
    exemplars: Mapping[str, Sequence[Exemplar]] = field(default_factory=dict)

    def upload(self, path: str | None) -> list[Update]:
        """An uploaded file: everything on the page anew, or a message where it is no image."""
        if path is None:
            return self._nothing("")
        try:
            pixels = load_image(path, max_pixels=min(each.max_pixels for each in self.predictors.values()))
            return self._show(pixels)
        except ImageError as error:
            return self._refused(Path(path), f"not a readable image, {error.reason}")
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            return self._refused(Path(path), str(error) or type(error).__name__)

    def pick(self, event: gr.SelectData) -> list[Update]:
        """An example that was clicked."""
        return self._show(load_image(self.examples[int(event.index)].image))

    def slide(self, value: float, session: Session | None, clicked: Clicked | None) -> list[Update]:
        """The slider was moved: saved results no longer hold; what is said of the pixel that was clicked;
        each model's line and unknown pixels."""
        if session is None:
            return [gr.skip(), gr.skip()] + [
                part for name in self.predictors for part in (self.line_before_image(name, value), gr.skip())
            ]
        thresholds = session.thresholds(value)
        return [gr.File(visible=False), "" if clicked is None else _bars(session, clicked, value)] + [
            part
            for name, seen in session.views.items()
            for part in (_line(session, name, value), unknown_panel(seen, thresholds[name]))
        ]

    def click(self, value: float, session: Session | None, event: gr.SelectData) -> list[Update]:
        """A picture was clicked: the image with a ring, what models say of the pixel, and that to keep."""
        if session is None:
            return [gr.skip(), gr.skip(), gr.skip()]
        photograph = session.any_view.photograph
        size = (photograph.shape[1], photograph.shape[0])
        shown = for_screen(Image.fromarray(photograph)).size
        x, y = pixel_at(size, shown, (int(event.index[0]), int(event.index[1])))
        found = {
            name: explain(predictor, session.pixels, x, y, self.exemplars.get(name, ()))
            for name, predictor in self.predictors.items()
        }
        clicked = Clicked(x, y, found)
        return [marked(photograph, x, y), _bars(session, clicked, value), clicked]

    def save(self, value: float, session: Session | None) -> Update:
        """The results as a zip file in the temporary folder."""
        if session is None:
            raise gr.Error(
                "There are no results yet: drop an image first", duration=10, print_exception=False
            )
        folder = tempfile.mkdtemp(dir=os.environ["GRADIO_TEMP_DIR"])
        path = Path(folder) / "results.zip"
        path.write_bytes(archive(session.views, session.thresholds(value)))
        return gr.File(str(path), visible=True)

    @cached_property
    def scale_before_image(self) -> ThresholdScale | None:
        """What the slider counts in while there is no image; None where an image decides."""
        return scale_of_any_picture([each.meaning.calibration for each in self.predictors.values()])

    def slider_before_image(self) -> gr.Slider:
        """The slider while there is no image: it already tells and sets what is promised, where it can."""
        scale = self.scale_before_image
        if scale is None:
            return gr.Slider(label="Threshold", interactive=False, elem_id="threshold", buttons=[])
        return _slider(scale)

    def line_before_image(self, name: str, value: float | None = None) -> str:
        """A model's threshold and promise while there is no image, by default at the slider's start."""
        calibration, scale = self.predictors[name].meaning.calibration, self.scale_before_image
        if scale is None:
            own = None if calibration is None else calibration.threshold
            return fragments.promise_line(name, own, no_promise(calibration), None)
        value = scale.start if value is None else value
        threshold = scale.threshold(value, calibration, None)
        return fragments.promise_line(name, threshold, scale.words(value, threshold, calibration), None)

    def legend(self, name: str) -> str:
        """The classes of a model in their colours."""
        meaning = self.predictors[name].meaning
        return fragments.legend(meaning.names, meaning.colours)

    def _show(self, pixels: Tensor) -> list[Update]:
        views = {name: view(predictor, pixels) for name, predictor in self.predictors.items()}
        scale = threshold_scale(
            [seen.meaning.calibration for seen in views.values()], [seen.anomaly for seen in views.values()]
        )
        session = Session(pixels, views, scale)
        photograph = for_screen(Image.fromarray(session.any_view.photograph))
        start: list[Update] = [session, None, "", _slider(scale), photograph, "", gr.File(visible=False)]
        return start + [part for name in views for part in _model_parts(session, name)]

    def _refused(self, file: Path, reason: str) -> list[Update]:
        """A message about an uploaded file, without the folder that it lies in."""
        return self._nothing(f"{file.name}: {reason}".replace(f"{file.parent}{os.sep}", ""))

    def _nothing(self, message: str) -> list[Update]:
        """The page as it was before there was an image, with a message if there is one."""
        said = fragments.alert(message) if message else ""
        slider = self.slider_before_image()
        empty: list[Update] = [None, None, said, slider, None, "", gr.File(visible=False)]
        return empty + [
            part
            for name in self.predictors
            for part in (self.line_before_image(name), *(None for _ in PARTS), self.legend(name))
        ]


def _slider(scale: ThresholdScale) -> gr.Slider:
    """The slider of thresholds, at its start.

    Without a button that resets it: it would go to the value that it had first.
    """
    return gr.Slider(
        scale.low,
        scale.high,
        scale.start,
        step=scale.step,
        label=scale.label,
        interactive=True,
        elem_id="threshold",
        buttons=[],
    )


def _bars(session: Session, clicked: Clicked, value: float) -> str:
    """What the models say of the pixel that was clicked, with the slider at ``value``."""
    thresholds = session.thresholds(value)
    said = [
        ClickedPixel(
            name,
            seen.meaning.colours,
            clicked.found[name],
            bool(seen.above(thresholds[name])[clicked.y, clicked.x]),
        )
        for name, seen in session.views.items()
    ]
    return fragments.pixel_bars(clicked.x, clicked.y, said)


def _line(session: Session, name: str, value: float) -> str:
    """A model's threshold and its promise with the slider at ``value``."""
    seen = session.views[name]
    threshold = session.thresholds(value)[name]
    words = session.scale.words(value, threshold, seen.meaning.calibration)
    return fragments.promise_line(name, threshold, words, float(np.mean(seen.above(threshold))))


def _model_parts(session: Session, name: str) -> list[Update]:
    """A model's line, its pictures in the order of PARTS, and its legend."""
    seen, value = session.views[name], session.scale.start
    threshold = session.thresholds(value)[name]
    pictures = {**panels(seen), "unknown": unknown_panel(seen, threshold)}
    classes, scale = fragments.legend(seen.meaning.names, seen.meaning.colours), seen.scale
    below = classes + fragments.heat_remark(scale.low, scale.high)
    return [_line(session, name, value), *(pictures[part] for part in PARTS), below]


# The page ------------------------------------------------------------------------------------------------


def build(page: LivePage) -> gr.Blocks:
    """The components of the page, joined to what happens on it."""
    with gr.Blocks(title="gmmseg", analytics_enabled=False, delete_cache=(600, 3600)) as blocks:
        session, clicked = (gr.State(None, time_to_live=3600) for _ in range(2))
        gr.HTML(f"<h1>gmmseg</h1>{fragments.remark(_INTRODUCTION)}")
        with gr.Row():
            with gr.Column(min_width=280):
                upload = gr.File(label="Drop an image", height=140, elem_id="upload")
                status = gr.HTML(elem_id="status")
                slider = page.slider_before_image()
                save = gr.Button("Save results", elem_id="save")
                saved = gr.File(label="Results", visible=False, interactive=False, elem_id="saved")
            with gr.Column(min_width=280):
                photograph = _picture("image", "photograph")
            with gr.Column(min_width=280, visible=bool(page.examples)):
                examples = _example_gallery(page.examples)
        bars = gr.HTML(elem_id="pixel")
        models = [_model_block(page, *each) for each in enumerate(page.predictors)]
        fixed = [session, clicked, status, slider, photograph, bars, saved]
        everything = [*fixed, *(part for each in models for part in each)]
        moving = [part for each in models for part in (each[0], each[1 + PARTS.index("unknown")])]
        upload.upload(page.upload, upload, everything, **_PRIVATE)
        upload.clear(page.upload, upload, everything, **_PRIVATE)
        examples.select(page.pick, None, everything, **_PRIVATE)
        # What people do, not every change: a new image sets the slider, too, and brings its own pictures.
        slider.input(
            page.slide,
            [slider, session, clicked],
            [saved, bars, *moving],
            show_progress="hidden",
            trigger_mode="always_last",
            **_PRIVATE,
        )
        pictures = [part for each in models for part in each if isinstance(part, gr.Image)]
        for picture in [photograph, *pictures]:
            picture.select(
                page.click, [slider, session], [photograph, bars, clicked], show_progress="hidden", **_PRIVATE
            ).then(None, js=_TO_THE_BARS)
        save.click(page.save, [slider, session], saved, **_PRIVATE)
    return blocks


def _picture(label: str, name: str) -> gr.Image:
    return gr.Image(
        label=label, format="png", interactive=False, buttons=[], elem_id=name, elem_classes="picture"
    )


def _model_block(page: LivePage, number: int, name: str) -> list[gr.components.Component]:
    """The components of one model: its line, its pictures, its legend."""
    line = gr.HTML(page.line_before_image(name), elem_id=f"line-{number}")
    with gr.Row(elem_classes="panels"):
        pictures = [_picture(part, f"{part}-{number}") for part in PARTS]
    return [line, *pictures, gr.HTML(page.legend(name), elem_id=f"legend-{number}")]


def _example_gallery(examples: Sequence[Example]) -> gr.Gallery:
    pictures = [
        (for_screen(Image.fromarray(each.image.movedim(0, -1).contiguous().numpy())), each.name)
        for each in examples
    ]
    return gr.Gallery(
        pictures,
        label="Examples",
        columns=3,
        allow_preview=False,
        format="png",
        elem_id="examples",
        buttons=[],
        object_fit="contain",
    )


_UPLOADS = ("/gradio_api/upload", "/upload")
"""Where files themselves are sent to: they may be large, and name nothing."""


class NothingFromElsewhere:
    """Refuses requests that name a file on another machine, which gradio would fetch."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").lower()
        refused = "file=http" in path or "/file/http" in path or "proxy=" in path
        pending = []
        if scope["type"] == "http" and scope["method"] == "POST" and path not in _UPLOADS:
            body = await Request(scope, receive).body()
            refused = refused or _names_another_machine(body)
            pending.append({"type": "http.request", "body": body, "more_body": False})

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        if scope["type"] == "http" and refused:
            await PlainTextResponse("files of other machines are not shown", 403)(scope, again, send)
        else:
            await self.app(scope, again, send)


def _names_another_machine(body: bytes) -> bool:
    """Whether a JSON text gives the path of a file as an address; what is no JSON names none."""
    try:
        rest = [json.loads(body)]
    except (ValueError, RecursionError):
        return False
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if str(value.get("path", "")).strip().lower().startswith(("http:", "https:")):
                return True
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return False


@contextmanager
def serving(page: LivePage, host: str, port: int | None) -> Iterator[str]:
    """The page at the address that is handed out, until the end of the block; its files go with it.

    ``port``: None takes the first free one from 7860 on.
    """
    with tempfile.TemporaryDirectory(prefix="gmmseg_app_") as folder, _environment(folder):
        blocks = build(page)
        plain = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        try:
            _, address, _ = blocks.launch(
                server_name=host,
                server_port=port,
                share=False,
                inbrowser=False,
                prevent_thread_lock=True,
                quiet=True,
                footer_links=[],
                allowed_paths=[],
                max_file_size=LARGEST_FILE,
                state_session_capacity=16,
                enable_monitoring=False,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                app_kwargs={"middleware": [Middleware(NothingFromElsewhere)]},
                theme=plain,
                css=fragments.STYLE,
            )
            yield address
        finally:
            blocks.close(verbose=False)


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """gradio's own settings while the page is served: all files in ``folder``, nothing sent anywhere."""
    wanted = {
        "GRADIO_TEMP_DIR": folder,
        "GRADIO_EXAMPLES_CACHE": str(Path(folder) / "examples"),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_ALLOWED_PATHS": "",
        "GRADIO_SHARE": "False",
        "GRADIO_RUN_HISTORY": "False",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
