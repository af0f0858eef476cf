"""Explanations of pixels: one as a page of its own, several as a section of a report."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gmmseg.inference import Explanation
from gmmseg.inference.pictures import crop_around
from gmmseg.inference.viewing import marked
from gmmseg.report import plots
from gmmseg.report.html import Report
from gmmseg.report.parts import Cell, Column, Figure, Gallery, Highlight, Section, Table

_MOST_CLASSES = 20
_WIDEST = 1024
NO_INDEX = (
    "There is no index of training pixels: `gmmseg explain MODEL --build --data NAME:ROOT:train` writes one."
)


@dataclass(frozen=True, eq=False)
class ExplainedPixel:
    """A pixel of the image ``name``, pixels (h w 3) uint8, and why it is what it is."""

    name: str
    pixels: NDArray[np.uint8]
    found: Explanation


def explained_section(model: str, explained: Sequence[ExplainedPixel]) -> Section | None:
    """Why the strangest pixel of each of some images is what ``model`` says; None without images."""
    if not explained:
        return None
    columns = ("pixel", "label", "posterior %", "most evidence", "component", "anomaly score", "p-value")
    digits = {"anomaly score": 2, "p-value": 4}
    return Section(
        "Why",
        f"The strangest pixel of each of these images, as {model} sees it, beside training pixels of the "
        "component it looks like most (`gmmseg explain --build` finds them). Others: `gmmseg explain`.",
        (
            Table(
                tuple(Column(name, digits=digits.get(name, 1)) for name in columns),
                tuple(_row(each) for each in explained),
            ),
        ),
        galleries=tuple(
            Gallery(
                f"{each.name}, pixel {each.found.x},{each.found.y}: {verdict(each.found)}",
                (*_pictures(each.found, each.pixels), *_exemplar_figures(each.found)),
                columns=6,
            )
            for each in explained
        ),
    )


def _row(each: ExplainedPixel) -> tuple[Cell, ...]:
    found = each.found
    return (
        f"{each.name}, {found.x},{found.y}",
        found.names[found.label],
        100 * found.posterior[found.label],
        found.names[found.nearest],
        None if found.component is None else f"{found.component + 1} of {len(found.component_shares)}",
        found.anomaly,
        found.p_value,
    )


def explanation_page(explained: Explanation, pixels: NDArray[np.uint8], name: str) -> Report:
    """The page about one pixel of an image, pixels (h w 3) uint8, called ``name``."""
    return Report(
        f"Pixel {explained.x},{explained.y} of {name}",
        (_picture_section(explained, pixels), explanation_section(explained), exemplar_section(explained)),
        "Made by `gmmseg explain`.",
        highlights(explained),
    )


def highlights(explained: Explanation) -> tuple[Highlight, ...]:
    """Label, how sure, how strange."""
    label = explained.names[explained.label]
    found = [Highlight("label", label, f"posterior {100 * explained.posterior[explained.label]:.1f} %")]
    nearest = explained.names[explained.nearest]
    found.append(Highlight("most evidence", nearest, f"{explained.evidence[explained.nearest]:.2f}"))
    if explained.component is not None:
        share = explained.component_shares[explained.component]
        note = f"of {len(explained.component_shares)}, {100 * share:.0f} % of the density"
        found.append(Highlight("component", str(explained.component + 1), note))
    found.append(Highlight("anomaly score", f"{explained.anomaly:.2f}", verdict(explained)))
    return tuple(found)


def verdict(explained: Explanation) -> str:
    """How strange the pixel is, in words."""
    if explained.threshold is None:
        return "no threshold yet: calibrate the model"
    known = "unknown" if explained.unknown else "known"
    if explained.p_value is None:
        return f"{known}, the threshold is {explained.threshold:.2f}"
    return f"{known}; at most {100 * explained.p_value:.3g} % of known pixels are as strange"


def explanation_section(explained: Explanation) -> Section:
    """Evidence and posterior of each class."""
    order = sorted(range(len(explained.names)), key=lambda each: -explained.evidence[each])[:_MOST_CLASSES]
    rows = tuple(
        (explained.names[each], explained.evidence[each], 100 * explained.posterior[each]) for each in order
    )
    what = "log p(pixel given class)" if explained.generative else "logit"
    text = (
        "Evidence is the log density of the pixel under the mixture of each class. The posterior also weighs "
        "how frequent classes are, at the temperature of the calibration."
        if explained.generative
        else "This model has a softmax head. It has no densities and no components: the bars are its logits, "
        "which say how classes compare and not how usual the pixel is."
    )
    if explained.classifiers > 1:
        text += (
            f" It is the mean over {explained.classifiers} classifiers on one backbone. Evidence is that of "
            "the first, and its largest need not be that of the class which is predicted."
        )
    more = len(explained.names) - len(order)
    return Section(
        "Evidence",
        text,
        (
            Table(
                (Column("class"), Column(what, digits=2), Column("posterior %")),
                rows,
                f"{more} more classes have less evidence." if more else "",
            ),
        ),
        (
            plots.bars(
                {explained.names[each]: explained.evidence[each] for each in order},
                chosen=explained.names[explained.label],
                caption="Evidence of each class" if explained.generative else "Logit of each class",
                label=what,
            ),
        ),
    )


def exemplar_section(explained: Explanation) -> Section:
    """Training pixels that the winning component stands for."""
    title = "Training pixels of the same kind"
    if explained.component is None:
        return Section(
            title, "This model has no components of cells, so there are no training pixels to show."
        )
    what = f"component {explained.component + 1} of {explained.names[explained.label]}"
    if not explained.exemplars:
        return Section(title, f"None is known for {what}. {NO_INDEX}")
    gallery = Gallery(what, _exemplar_figures(explained))
    return Section(title, f"Nearest to the mean of {what}.", galleries=(gallery,))


def _exemplar_figures(explained: Explanation) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            each.crop,
            "jpeg",
            f"Training pixel {each.x},{each.y} of {each.image} and its surroundings",
            f"{each.image}, pixel {each.x},{each.y}: {each.distance:.1f} standard deviations from the mean",
        )
        for each in explained.exemplars
    )


def _picture_section(explained: Explanation, pixels: NDArray[np.uint8]) -> Section:
    gallery = Gallery("Image", _pictures(explained, pixels), 2)
    return Section("The pixel", verdict(explained).capitalize() + ".", galleries=(gallery,))


def _pictures(explained: Explanation, pixels: NDArray[np.uint8]) -> tuple[Figure, Figure]:
    """The image with a ring around the pixel, and the pixel's surroundings."""
    whole = marked(pixels, explained.x, explained.y)
    whole.thumbnail((_WIDEST, _WIDEST))
    side = max(24, min(pixels.shape[:2]) // 4)
    near = crop_around(pixels, explained.x, explained.y, side)
    place = f"pixel {explained.x},{explained.y}"
    return (
        Figure(_encoded(whole), "jpeg", f"The image, a ring around {place}", f"The ring is around {place}"),
        Figure(_encoded(near), "jpeg", f"The surroundings of {place}", "Its surroundings"),
    )


def _encoded(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=90)
    return buffer.getvalue()
