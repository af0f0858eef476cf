"""The model card: README.md beside the weights, made of the files that are there and of nothing else.

A README.md that a person wrote has no mark in its first line and is left as it is.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from gmmseg.atomic import write_bytes
from gmmseg.json_tree import JSON
from gmmseg.models.calibration_file import CALIBRATION_FILE, Calibration, stored_calibration
from gmmseg.models.companion import companions_in_words
from gmmseg.models.recipe import network_name

CARD_FILE = "README.md"
MARK = "<!-- written by gmmseg; remove this line to keep your own changes -->"
RESULTS_FILE = "results.json"
_MOST_CLASSES = 40


def write_card(folder: Path, config: JSON, weights: str, run_parts: tuple[str, ...] = ()) -> None:
    """Write or refresh README.md of a folder of weights, whole or not at all; a person's own one stays.

    ``config``: what config.json says. ``weights``: their digest; results of others are not shown.
    ``run_parts``: names of folders whose results lie one folder up.
    """
    path = folder / CARD_FILE
    if (path.exists() or path.is_symlink()) and not _is_ours(path):
        return
    places = (folder, folder.parent) if folder.name in run_parts else (folder,)
    results = next((place / RESULTS_FILE for place in places if (place / RESULTS_FILE).is_file()), None)
    calibration = stored_calibration(folder)
    rows = [] if results is None else list(_rows(results, weights, calibration))
    text = _text(folder, config, calibration, results if rows else None, rows)
    write_bytes(path, text.encode(errors="replace"))


def _is_ours(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return file.readline(len(MARK) + 2).strip() == MARK.encode()


def _text(
    folder: Path, config: JSON, calibration: Calibration | None, results: Path | None, rows: list[str]
) -> str:
    parts = [
        MARK,
        f"# {_plain(network_name(config.get('recipe')))}, {config['num_classes']} classes",
        "A segmenter of gmmseg: for each pixel a class, how sure the model is, and how strange the pixel is.",
        "## Load it",
        "```python\nimport gmmseg\n"
        'model = gmmseg.from_pretrained("FOLDER")  # this folder\n'
        'prediction = gmmseg.Predictor(model).predict("photo.jpg")\n```',
        "`prediction` has labels, posterior, confidence, anomaly, unknown and p_values.",
        "## Architecture",
        *_architecture(config),
        "## Data",
        *_data(folder, calibration),
        "## Results",
        *_results(folder, results, rows),
        "## Calibration",
        *_calibration(calibration),
        "## Limits",
        *_limits(config, calibration),
        "## Licence",
        "The library is under Apache-2.0. Nothing here says under which terms the weights may be used: that "
        "depends on the images and on the pretrained weights they were made of. State it here before you "
        "share them, and remove the first line.",
    ]
    return "\n\n".join(parts) + "\n"


def _architecture(config: JSON) -> Iterator[str]:
    head = (config.get("recipe") or {}).get("head") or {}
    kind = {
        "gmm": f"Gaussian mixtures, {head.get('components', '?')} components per class",
        "softmax": "softmax",
    }.get(str(head.get("kind")), "see config.json")
    density = config.get("density")
    beside = "".join(f"; {words}" for words in companions_in_words(config.get("companions") or ()))
    beside += "" if density is None else "; a density of the backbone's maps beside it"
    names = config.get("label_names")
    shown = ", ".join(map(_plain, (names or ())[:_MOST_CLASSES]))
    more = ", ..." if names and len(names) > _MOST_CLASSES else ""
    about = (
        "network: " + _plain(network_name(config.get("recipe"))),
        f"head: {kind}{beside}",
        f"gmmseg {config['version']}",
    )
    yield "\n".join(f"- {line}" for line in about)
    yield f"{config['num_classes']} classes" + (f": {shown}{more}." if names else ", without names.")


def _data(folder: Path, calibration: Calibration | None) -> Iterator[str]:
    trained = next((each for each in ("config.yaml", "../config.yaml") if (folder / each).is_file()), None)
    if trained:
        yield f"Trained as `{trained}` says."
    else:
        yield "What it was trained on is not recorded beside the weights."
    if calibration is not None and calibration.data is not None:
        data = calibration.data
        yield f"Calibrated on {data.images} images of {_plain(data.name)}/{_plain(data.split)}."


def _results(folder: Path, path: Path | None, rows: list[str]) -> Iterator[str]:
    """The main figures of each data set."""
    if path is None:
        yield "None are recorded: `gmmseg evaluate FOLDER --data NAME:ROOT:val` writes them."
        return
    shown = path.name if path.parent == folder else f"../{path.name}"
    yield f"In percent, from `{shown}`."
    yield "| data set | score | result |\n|---|---|---|\n" + "\n".join(rows)


def _rows(path: Path, weights: str, calibration: Calibration | None) -> Iterator[str]:
    """A row for each data set and score; a file that is broken, or of other weights, says nothing.

    What depends on the calibration (ece, fused scores) may have changed since: such a row says so.
    """
    now = None if calibration is None else calibration.time
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        sets = results["sets"].items() if results["weights"] == weights else ()
        settings = dict(results.get("settings", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    for name, entry in sets:
        try:
            found = {"": entry["metrics"]} if "metrics" in entry else entry.get("scores", {})
            figures = {score: _figures(values) for score, values in found.items()}
            # An entry or a score that was kept from an earlier evaluation has settings of its own.
            made = {
                score: {**settings, **entry.get("settings", {}), **values.get("settings", {})}
                for score, values in found.items()
            }
        except (ValueError, TypeError, AttributeError):
            continue
        for score, text in figures.items():
            earlier = "" if made[score].get("calibrated", now) == now else " (with another calibration)"
            if text:
                yield f"| {_plain(name)} | {_plain(score)} | {text}{earlier} |"


def _figures(values: JSON) -> str:
    """The main figures among the values of a score, those that are numbers."""
    wanted = {key: float(values[key]) for key in ("miou", "ece", "auroc", "ap", "fpr95") if key in values}
    return ", ".join(f"{key} {100 * value:.1f}" for key, value in wanted.items() if math.isfinite(value))


def _calibration(calibration: Calibration | None) -> Iterator[str]:
    if calibration is None:
        yield "Not calibrated, so nothing is called unknown: `gmmseg calibrate FOLDER --data NAME:ROOT:val`."
        return
    value = "" if calibration.threshold is None else f" ({calibration.threshold:.6g})"
    yield f"The threshold{value} {_plain(calibration.promise_text())}; score: {_plain(calibration.score)}."
    yield f"Temperature {calibration.temperature:.4g}; everything that was found is in `{CALIBRATION_FILE}`."


def _limits(config: JSON, calibration: Calibration | None) -> Iterator[str]:
    promised = calibration is not None and calibration.promise is not None
    yield (
        "- It knows the classes above and nothing else; a high anomaly score means unlike the training "
        "images, not dangerous.\n- Images of another camera, place or season give other scores"
        + ("; the promise holds for images like those of the calibration." if promised else ".")
    )
    seen = {key: value for key, value in (config.get("inference") or {}).items() if value}
    if seen:
        words = ", ".join(f"{key} {value}" for key, value in seen.items())
        yield f"Images are looked at with {words} (pixels); another size gives other scores."


def _plain(text: str) -> str:
    """Text of unknown origin without what Markdown or HTML would act on."""
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>()#|!&" else each for each in " ".join(text.split()))
