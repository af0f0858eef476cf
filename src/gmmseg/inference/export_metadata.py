"""What travels inside an exported file beside the graph: classes, calibration, how images are to be given."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import gmmseg
from gmmseg.bounds import Count, SideOrNone, Text, check_bounds
from gmmseg.class_colours import default_colours
from gmmseg.json_tree import JSON
from gmmseg.models import InferenceSettings, Segmenter
from gmmseg.models.calibration_file import calibration_of, calibration_tree, possible_scores
from gmmseg.models.saving import Byte

PREFIX = "gmmseg."
"""How the names of the entries begin, so that a file may hold those of others, too."""
METADATA_FORMAT = 1


class ExportedFileError(ValueError):
    """A file that is no exported segmenter, or a broken one."""


@dataclass(frozen=True)
class ExportMetadata:
    """Everything about an exported model that is not in its graph; each field is an entry, as JSON."""

    classes: tuple[str, ...]
    colours: tuple[tuple[Byte, Byte, Byte], ...]
    threshold: float | None
    """The default of the input ``threshold``; None: nothing is calibrated, and the default is infinity."""
    calibration: dict | None
    """What calibration.json holds; None without."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Images are normalised inside the graph by these; given for information alone."""
    stride: Count
    smallest_side: SideOrNone
    """The graph agrees with the model for images with no side below this; 0: for all."""
    short_side: SideOrNone | None = None
    window: SideOrNone | None = None
    """How the model looks at images outside: resized to this shorter side, through windows of this side."""
    posterior: bool = False
    precision: Text = "float32"
    version: Text = gmmseg.__version__
    format: Count = METADATA_FORMAT

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.format != METADATA_FORMAT:
            raise ValueError(f"format {self.format}, this version of gmmseg reads format {METADATA_FORMAT}")
        if len(self.colours) != len(self.classes):
            raise ValueError(f"{len(self.colours)} colours for {len(self.classes)} classes")
        if self.calibration is not None:
            found = calibration_of(self.calibration)  # refuses what is none
            names = None if self.classes == _numbered(len(self.classes)) else self.classes
            found.check_model(found.weights, len(self.classes), names, possible_scores(True))

    @property
    def default_threshold(self) -> float:
        """The threshold of a graph that is given none: infinity where nothing is calibrated."""
        return math.inf if self.threshold is None else self.threshold

    @property
    def inference(self) -> InferenceSettings:
        return InferenceSettings(self.short_side, self.window)

    def entries(self) -> dict[str, str]:
        """Text by name, as formats keep it."""
        return {f"{PREFIX}{name}": json.dumps(value) for name, value in asdict(self).items()}


def _numbered(count: int) -> tuple[str, ...]:
    """What the classes of a model without names are called."""
    return tuple(f"class {index}" for index in range(count))


def metadata_of(segmenter: Segmenter, *, posterior: bool, smallest_side: int) -> ExportMetadata:
    """What is true of a segmenter at this moment."""
    calibration = segmenter.calibration
    threshold = None if calibration is None else calibration.threshold
    count = segmenter.num_classes
    mean, std = (tuple(each.flatten().tolist()) for each in (segmenter.mean, segmenter.std))
    return ExportMetadata(
        classes=segmenter.label_names or _numbered(count),
        colours=segmenter.colours or default_colours(count),
        threshold=threshold if threshold is not None and math.isfinite(threshold) else None,
        calibration=None if calibration is None else json.loads(json.dumps(calibration_tree(calibration))),
        mean=mean,
        std=std,
        stride=segmenter.stride,
        smallest_side=smallest_side,
        short_side=segmenter.inference.short_side,
        window=segmenter.inference.window,
        posterior=posterior,
    )


def read_metadata(entries: Mapping[str, str], path: Path) -> ExportMetadata:
    """The metadata among the entries of a file; ExportedFileError where they are missing or broken."""
    known = {field.name for field in fields(ExportMetadata)}
    found: JSON = {}
    try:
        for key, text in entries.items():
            if key.removeprefix(PREFIX) in known and key.startswith(PREFIX):
                found[key.removeprefix(PREFIX)] = json.loads(text)
        return ExportMetadata(**found)
    except (ValueError, TypeError, RecursionError) as error:
        raise ExportedFileError(
            f"{path}: not a model that gmmseg has exported ({error}); write it with gmmseg export"
        ) from error
