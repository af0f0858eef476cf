"""Pieces of HTML for the live page: a legend, what a threshold promises, the evidence of a pixel as bars."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gmmseg.class_colours import Colours
from gmmseg.inference import Exemplar, Explanation

_MOST_CLASSES = 20

STYLE = """
.gradio-container { max-width: 1500px !important; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 4px 0; padding: 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 6px; margin: 0; font-size: 14px; }
.legend span { width: 14px; height: 14px; border-radius: 3px; border: 1px solid #0006; flex: none; }
.remark { font-size: 14px; overflow-wrap: anywhere; margin: 2px 0; }
.alert { border-left: 4px solid #c0392b; padding: 6px 10px; background: #c0392b22; }
.bars { width: 100%; border-collapse: collapse; font-size: 13px; table-layout: fixed; }
.bars, .bars tr, .bars td { border: 0 !important; background: none !important; }
.bars td { padding: 1px 6px !important; }
.bars td:first-child { width: 30%; overflow-wrap: anywhere; hyphens: auto; line-height: 1.2; }
.bars td:last-child { width: 125px; text-align: right; white-space: nowrap; }
.bars div { height: 12px; min-width: 1px; border-radius: 2px; border: 1px solid #0004; }
.bars .most { font-weight: 650; }
.pixels {
  display: grid; gap: 8px 24px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr));
}
.exemplars { display: flex; flex-wrap: wrap; gap: 8px; margin: 4px 0; }
.exemplars img { width: 96px; height: 96px; object-fit: cover; border-radius: 3px; }
.panels { display: grid !important; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 8px; }
.panels > * { min-width: 0 !important; }
.picture label[data-testid="block-label"] { position: static; border: 0; box-shadow: none; }
.picture img { width: 100%; height: auto; object-fit: contain; cursor: crosshair; }
#examples .grid-wrap { min-height: 0; max-height: none; height: auto; }
#examples .caption-label { max-width: 100%; font-size: 11px; white-space: normal; }
@media (max-width: 700px) { .panels { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
footer { display: none !important; }
"""


@dataclass(frozen=True)
class ClickedPixel:
    """One model's words on a pixel, and whether it is unknown at the threshold that the page is at."""

    model: str
    colours: Colours
    found: Explanation
    unknown: bool


def legend(names: Sequence[str], colours: Colours) -> str:
    """Each class with its colour."""
    items = (
        f'<li><span style="background:rgb{tuple(colour)}"></span>{escape(name)}</li>'
        for name, colour in zip(names, colours)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def alert(message: str) -> str:
    """A message about something that went wrong."""
    return f'<p class="remark alert" role="alert">{escape(message)}</p>'


def remark(text: str) -> str:
    """A sentence."""
    return f'<p class="remark">{escape(text)}</p>'


def promise_line(name: str, threshold: float | None, words: str, share: float | None) -> str:
    """A model's name, its threshold, what it promises, and how much of the picture is unknown.

    ``share``: None while there is no picture.
    """
    value = "no threshold" if threshold is None else f"threshold {threshold:.4g}"
    found = "" if share is None else f" · {100 * share:.2f} % of this picture is unknown"
    return (
        f'<p class="remark"><strong>{escape(name)}</strong> · {value}{found}<br>'
        f"The threshold {escape(words)}.</p>"
    )


def heat_remark(low: float, high: float) -> str:
    """What the colours of confidence and anomaly mean."""
    return remark(
        f"Confidence: dark = unsure, bright = sure. Anomaly: dark = usual, bright = strange ({low:.4g} to "
        f"{high:.4g}). Unknown: in colour with a cyan outline, the rest is grey."
    )


def pixel_bars(x: int, y: int, clicked: Sequence[ClickedPixel]) -> str:
    """What each model says of the pixel in column x of row y."""
    parts = "".join(f"<div>{_one_model(each)}</div>" for each in clicked)
    return f'<p class="remark"><strong>Pixel {x},{y}</strong></p><div class="pixels">{parts}</div>'


def _one_model(clicked: ClickedPixel) -> str:
    found = clicked.found
    order = sorted(range(len(found.names)), key=lambda each: -found.evidence[each])[:_MOST_CLASSES]
    low, high = (edge(found.evidence[each] for each in order) for edge in (min, max))
    rows = "".join(_row(clicked, each, low, high) for each in order)
    kind = "log p(pixel given class)" if found.generative else "logit (softmax head: no densities)"
    usual = "no p-value: not calibrated" if found.p_value is None else f"p-value {found.p_value:.3g}"
    verdict = "unknown" if clicked.unknown else "known"
    return (
        f'<p class="remark"><strong>{escape(clicked.model)}</strong>: '
        f"{escape(found.names[found.label])}, {verdict} · anomaly score {found.anomaly:.4g} · {usual}</p>"
        f'<p class="remark">{kind} · posterior</p><table class="bars">{rows}</table>{_component(found)}'
    )


def _component(found: Explanation) -> str:
    """The component the pixel looks like most, and training pixels of it where there is an index."""
    if found.component is None:
        return ""
    which = f"component {found.component + 1} of {len(found.component_shares)} of {found.names[found.label]}"
    pictures = "".join(_training_pixel(each) for each in found.exemplars)
    if not pictures:
        return remark(f"Looks most like {which}. Training pixels of it: gmmseg explain MODEL --build")
    return remark(f"Looks most like {which}, which stands for these training pixels:") + (
        f'<div class="exemplars">{pictures}</div>'
    )


def _training_pixel(each: Exemplar) -> str:
    where = escape(f"{each.image}, pixel {each.x},{each.y}")
    data = base64.b64encode(each.crop).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{where}" title="{where}">'


def _row(clicked: ClickedPixel, index: int, low: float, high: float) -> str:
    """A bar that reaches from the least evidence (short) to the most (whole width)."""
    found = clicked.found
    width = 4 + 96 * (found.evidence[index] - low) / max(high - low, 1e-12)
    most = ' class="most"' if index == found.nearest else ""
    name = escape(found.names[index])
    return (
        f'<tr{most}><td title="{name}">{name}</td>'
        f'<td><div style="width:{width:.1f}%;background:rgb{tuple(clicked.colours[index])}"></div></td>'
        f"<td>{found.evidence[index]:.2f} · {100 * found.posterior[index]:.1f} %</td></tr>"
    )
