"""The command that says why a pixel is what it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gmmseg.cli_options import Model
from gmmseg.terminal import Bar, note, say

if TYPE_CHECKING:
    from gmmseg.inference import Explanation


def explain(
    model: Model,
    image: Annotated[Path | None, typer.Argument(help="The image.")] = None,
    at: Annotated[str | None, typer.Option(help="The pixel x,y: column and row, both from 0.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("explain.html"),
    build: Annotated[
        bool, typer.Option("--build", help="Write the index of training pixels beside the weights.")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="With --build: the training set, NAME:ROOT[:SPLIT].")
    ] = None,
) -> None:
    """Explain one pixel: evidence of each class, component, how strange it is, similar training pixels.

    Training pixels come from an index, which --build --data writes once beside the weights.
    """
    if image is None and not build:
        raise ValueError(
            "name an image and a pixel, --at x,y; or write the index, --build --data NAME:ROOT:train"
        )
    if (data is None) == build:
        raise ValueError("--build and --data belong together: the index is made of the training set")
    if image is not None and at is None:
        raise ValueError(f"which pixel of {image}? --at x,y names it, column and row from 0")
    place = None if at is None else parse_place(at)
    if data is not None:
        _build(model, data)
    if image is not None and place is not None:
        _explain(model, image, place, out)


def parse_place(text: str) -> tuple[int, int]:
    """Column and row of ``x,y``."""
    parts = text.split(",")
    try:
        x, y = (int(part) for part in parts)
    except ValueError:
        raise ValueError(f"--at {text}: a pixel is x,y, two whole numbers such as 120,45") from None
    return x, y


def _build(model: str, spec: str) -> None:
    from gmmseg import run

    segmenter = run.open_model(model).to(run.join_processes().device)
    with Bar("looking for exemplars") as bar:
        folder = run.build_exemplars(model, segmenter, run.open_named(spec, "train"), progress=bar)
    if run.join_processes().is_main_process:
        say(f"index of training pixels in {folder}")


def _explain(model: str, image: Path, place: tuple[int, int], out: Path) -> None:
    from gmmseg import run

    explained, indexed = run.write_explanation(model, image, place, out)
    if explained.generative and not indexed:
        note(
            f"no training pixels are shown: gmmseg explain {model} --build --data NAME:ROOT:train finds them"
        )
    say(_summary(explained))
    say(f"page: {out}")


def _summary(explained: "Explanation") -> str:
    """One line about a pixel."""
    from gmmseg.report.explained import verdict

    label, nearest = explained.names[explained.label], explained.names[explained.nearest]
    kind = "evidence" if explained.generative else "logit (softmax head, no components)"
    component = "" if explained.component is None else f", component {explained.component + 1}"
    return (
        f"pixel {explained.x},{explained.y}: {label}, posterior {explained.posterior[explained.label]:.3f}"
        f"{component}; "
        f"most {kind}: {nearest}; anomaly score {explained.anomaly:.4g}, {verdict(explained)}"
    )
