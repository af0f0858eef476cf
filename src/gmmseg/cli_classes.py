"""Commands that change the classes of a trained model without training it."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gmmseg.cli_options import Model
from gmmseg.cli_shared import next_prediction
from gmmseg.terminal import Bar, note, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gmmseg.evaluation.class_gain import ClassGain
    from gmmseg.models import Segmenter
    from gmmseg.run.class_editing import AddedClass
    from gmmseg.samples import FingerprintedDataset, SegmentationDataset

OutOption = Annotated[
    Path, typer.Option(help="Folder for the new weights. One that holds weights is refused.")
]
NameOption = Annotated[str, typer.Option(help="Name of the class.")]
ValidationOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        help="Labelled images the model was not trained on, NAME:ROOT[:SPLIT], to judge and calibrate on; "
        "classes are matched by name. Default: the validation set of a run folder.",
    ),
]
MasksOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of masks, a.jpg.png or a.png for a.jpg: 1 is the class, 0 not, 255 ignored; "
        "or 255 and 0, as the unknown masks of gmmseg predict."
    ),
]
CalibrateOnOption = Annotated[
    str | None,
    typer.Option("--data", "-d", help="Labelled images to calibrate the new model on, NAME:ROOT[:SPLIT]."),
]


def add_class(
    model: Model,
    name: Annotated[str, typer.Option(help="Name of the new class.")],
    images: Annotated[Path, typer.Option(help="Folder of images.")],
    out: OutOption,
    masks: MasksOption = None,
    objects: Annotated[
        Path | None,
        typer.Option(help="Instead of masks: the objects.json that gmmseg predict --objects made of these."),
    ] = None,
    accept: Annotated[
        str | None, typer.Option(help="With --objects: ids of the objects that are of the class, 3,7,12.")
    ] = None,
    data: ValidationOption = None,
    components: Annotated[
        int | None, typer.Option(min=1, help="Gaussians of the class, at most. Default: as the others have.")
    ] = None,
) -> None:
    """Add a class to a trained model from a few images with masks, or accepted objects; nothing is trained.

    All other classes keep their densities. Prints what the new class takes from them on validation images,
    then writes the new model, calibrated on the same images.
    """
    from gmmseg import run

    _refuse_taken(out)
    marked = _marked(images, masks, objects, accept)
    validation = _validation(model, data)
    segmenter = run.open_model(model).to(run.join_processes().device)
    with Bar("adding the class") as bar:
        added = run.add_class(
            segmenter, name, marked, validation=validation, components=components, progress=bar
        )
    if run.join_processes().is_main_process:
        _tell(name, added)
    _save(added.segmenter, out, validation)


def _marked(
    images: Path, masks: Path | None, objects: Path | None, accept: str | None
) -> "SegmentationDataset":
    """The images in which the new class is marked, by masks or as accepted objects."""
    from gmmseg.data.accepted_regions import AcceptedRegions
    from gmmseg.data.class_masks import images_without_mask, open_class_masks

    if (masks is None) == (objects is None) or (objects is None) != (accept is None):
        raise ValueError("say where the class is: --masks DIR, or --objects FILE with --accept 3,7,12")
    if objects is not None and accept is not None:
        return AcceptedRegions(images, objects, _ids(accept))
    assert masks is not None
    marked = open_class_masks(images, masks)
    left_out = images_without_mask(images, marked)
    if left_out:
        note(f"{len(left_out)} images have no mask and are left out, {left_out[0]} among them")
    return marked


def _ids(text: str) -> list[int]:
    """The numbers of ``3,7,12``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--accept {text}: give ids of objects, whole numbers such as 3,7,12") from None


def remove_class(model: Model, name: NameOption, out: OutOption, data: CalibrateOnOption = None) -> None:
    """Remove a class from a trained model; its pixels go to other classes, or become unknown."""
    _refuse_taken(out)
    _save(_open(model).without_class(name), out, _opened(data))


def rename_class(
    model: Model,
    name: NameOption,
    to: Annotated[str, typer.Option(help="Its new name.")],
    out: OutOption,
) -> None:
    """Give a class of a trained model another name; weights, calibration and training pixels stay."""
    from gmmseg import distributed, run
    from gmmseg.models.exemplars import write_exemplars
    from gmmseg.models.saving import digest

    _refuse_taken(out)
    segmenter = _open(model)
    exemplars = run.exemplars_of(model, segmenter)
    renamed = segmenter.with_class_renamed(name, to)
    if distributed.rank() == 0:
        renamed.save_pretrained(out)
        if exemplars is not None:
            write_exemplars(exemplars, digest(renamed), out)
        say(f"weights in {out}")


def merge_classes(
    model: Model,
    name: NameOption,
    other: Annotated[str, typer.Option("--with", help="Name of the class that is taken into it.")],
    out: OutOption,
    to: Annotated[str | None, typer.Option(help="Name of both together. Default: that of the first.")] = None,
    data: CalibrateOnOption = None,
) -> None:
    """Make one class of two; its mixture is the union of both."""
    _refuse_taken(out)
    merged = _open(model).with_classes_merged(name, other, to=to)
    _save(merged, out, _opened(data), dict.fromkeys((name, other), to or name))


def _refuse_taken(out: Path) -> None:
    """Refuse a folder that holds weights or a run already, and a file, before any work is done."""
    from gmmseg.training.run_folder import refuse_weights, refuse_work

    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out}: is a file; --out names the folder for the new weights")
    refuse_weights(out)
    refuse_work(out)


def _open(model: str) -> "Segmenter":
    from gmmseg import run

    return run.open_model(model)


def _opened(spec: str | None) -> "FingerprintedDataset | None":
    from gmmseg import run

    return None if spec is None else run.open_named(spec)


def _validation(model: str, spec: str | None) -> "FingerprintedDataset | None":
    """The set that is named, or the whole validation set of a run folder; None where there is neither."""
    from gmmseg import run

    if spec is not None:
        return run.open_named(spec)
    try:
        return run.whole_validation_set(Path(model))
    except (OSError, ValueError) as error:
        note(f"the validation set of {model} cannot be opened ({error})")
        return None


def _tell(name: str, added: "AddedClass") -> None:
    """Say what the new class is made of, and what it takes from the others."""
    components = f"{added.components} component{'s' * (added.components > 1)}"
    say(f"{name}: {added.cells} cells, {components}, log prior {added.log_prior:.2f}")
    if added.gain is None:
        note("without validation images (--data) nobody knows what it takes from the other classes")
        return
    for line in gain_lines(added.gain):
        say(line)


def gain_lines(gain: "ClassGain") -> list[str]:
    """The lines of a table: IoU of each old class before and after, and which share the new one has taken."""
    rows = [
        f"| {name} | {_percent(before)} | {_percent(after)} | {_percent(taken)} |"
        for name, before, after, taken in zip(gain.names, gain.before, gain.after, gain.taken)
    ]
    new = "not labelled in these images" if math.isnan(gain.new_iou) else f"IoU {_percent(gain.new_iou)}"
    return [
        f"| class | IoU before | IoU after | taken by {gain.new} |",
        "|---|---|---|---|",
        *rows,
        f"{gain.new}: {new}; the others lose {100 * gain.lost:.2f} points of mean IoU",
    ]


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def _save(
    segmenter: "Segmenter",
    out: Path,
    dataset: "FingerprintedDataset | None",
    also: "Mapping[str, str] | None" = None,
) -> None:
    """Write the model; calibrate it where there are images for it, else say that this comes next."""
    from gmmseg import distributed, run

    known = None
    if dataset is not None:
        known = run.matched_classes(dataset, segmenter.label_names or (), segmenter.colours, also)
    if distributed.rank() == 0:
        segmenter.save_pretrained(out)
        say(f"weights in {out}")
    distributed.wait_for_all()
    if known is None:
        if distributed.rank() == 0:
            say(f"next: gmmseg calibrate {out} --data NAME:ROOT:val, the old calibration no longer fits")
        return
    with Bar("calibrating") as bar:
        run.calibrate_folders([out], known, device=run.join_processes().device, progress=bar)
    if distributed.rank() == 0:
        say(f"calibrated on {known.name}/{known.split}; {next_prediction(out)}")
