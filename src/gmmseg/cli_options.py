"""Options and arguments of the commands that several commands share, or whose help needs many words."""

from pathlib import Path
from typing import Annotated

import typer

_SET = "NAME:ROOT[:SPLIT], such as camvid:~/camvid:test"
_AS_VALIDATED = "Default: as in the model's validation; 0 for none."


def _shipped_configurations(begun: str) -> list[str]:
    """Names of shipped configurations that begin so, for the completion of shells; no library is loaded."""
    names = (path.stem for path in Path(__file__).with_name("configs").glob("*.yaml"))
    return sorted(name for name in names if name.startswith(begun))


def _presets(begun: str) -> list[str]:
    return [name for name in ("default", "paper", "reference", "softmax") if name.startswith(begun)]


Model = Annotated[
    str, typer.Argument(help="Run folder, folder of weights, or hf:owner/name on the Hugging Face hub.")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Run folder, folder of weights, hf:owner/name on the hub, or an exported file."
    ),
]
DataOption = Annotated[
    list[str], typer.Option("--data", "-d", help=f"Data set, {_SET}. May be given several times.")
]
WindowOption = Annotated[int | None, typer.Option(min=0, help=f"Side of sliding windows. {_AS_VALIDATED}")]
StrideOption = Annotated[int | None, typer.Option(min=0, help=f"Stride of sliding windows. {_AS_VALIDATED}")]
ShortSideOption = Annotated[
    int | None, typer.Option(min=0, help=f"Resize images to this shorter side first. {_AS_VALIDATED}")
]
PixelsOption = Annotated[
    int | None, typer.Option(min=1, help="Refuse larger images. Default: 67 million pixels.")
]
ConfigArgument = Annotated[
    str,
    typer.Argument(
        help="A .yaml or .toml file, or the name of a shipped configuration.",
        autocompletion=_shipped_configurations,
    ),
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(help="section.key=value, such as train.steps=100.")
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        help="default, paper, reference or softmax: sets head, EM, loss weights and sampling together.",
        autocompletion=_presets,
    ),
]
ResumeOption = Annotated[
    bool, typer.Option(help="Continue the run in this folder from its newest checkpoint.")
]
ResumeFromOption = Annotated[
    Path | None, typer.Option(help="Continue from this checkpoint file, or from this run folder.")
]
ScoresOption = Annotated[
    str, typer.Option(help="Anomaly scores, separated by commas. Default: those of the head.")
]
TrainDataOption = Annotated[
    str | None, typer.Option(help=f"Training set of scores that are fitted on one, {_SET}.")
]
SmoothOption = Annotated[
    bool, typer.Option("--smooth", help="Also report the scores after SML's dilated smoothing.")
]
BoundariesOption = Annotated[
    bool,
    typer.Option("--suppress-boundaries", help="Also report the scores after SML's boundary suppression."),
]
ComponentsOption = Annotated[
    str | None, typer.Option(help="Also report component metrics: of the preset anomaly or obstacle.")
]
ResultsOption = Annotated[
    Path | None,
    typer.Option(
        help="Results file; results it already holds are kept. Default: results.json beside the model."
    ),
]
FitOnOption = Annotated[
    str,
    typer.Option(
        help="backbone: a density of the backbone's maps beside the head, which stays as it is. "
        "features: mixtures of the features before the classifier, in place of the head."
    ),
]
PassesOption = Annotated[int, typer.Option(min=1, help="Largest number of passes of EM over the kept cells.")]
CalibrateOption = Annotated[
    str | None,
    typer.Option(
        help=f"Labelled images the model was not trained on, {_SET}, to calibrate on. "
        "Default: the validation set of a run folder."
    ),
]
FalseAlarmsOption = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        max=0.999,
        help="Promise of the threshold: at most this share of false alarms on new images like these. "
        "Default: 0.05 where the images suffice for it, else a threshold without a promise.",
    ),
]
PerOption = Annotated[
    str | None,
    typer.Option(
        help="What is counted. pixel: the expected share of flagged known pixels of an image. "
        "image: the share of images in which anything is flagged. Default: pixel."
    ),
]
MinAreaOption = Annotated[
    int | None,
    typer.Option(min=1, help="With --per image: smaller regions are neither shown nor an alarm. Default: 1."),
]
ObjectsOption = Annotated[
    bool,
    typer.Option("--objects", help="Also write unknown objects: objects.json (COCO), pictures with boxes."),
]
ObjectAreaOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --objects: pixels of the smallest object. Default: that of the calibration's promise per "
        "image, else 1/2000 of the image.",
    ),
]
