"""The command line: words become calls of `gmmseg.run`. Nothing heavy is imported before a command runs.

The commands stand first, each registered by its decorator; then what they have in common, and `main`.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer.core import TyperGroup

from gmmseg.allocator import keep_freed_memory
from gmmseg.cli_adapt import adapt
from gmmseg.cli_app import app as live_page
from gmmseg.cli_classes import add_class, merge_classes, remove_class, rename_class
from gmmseg.cli_explain import explain
from gmmseg.cli_export import bench, export
from gmmseg.cli_masks import convert_masks
from gmmseg.cli_monitor import monitor
from gmmseg.cli_options import (
    BoundariesOption,
    CalibrateOption,
    ComponentsOption,
    ConfigArgument,
    DataOption,
    FalseAlarmsOption,
    FitOnOption,
    MinAreaOption,
    Model,
    OverridesArgument,
    PassesOption,
    PerOption,
    PresetOption,
    ResultsOption,
    ResumeFromOption,
    ResumeOption,
    ScoresOption,
    ShortSideOption,
    SmoothOption,
    StrideOption,
    TrainDataOption,
    WindowOption,
)
from gmmseg.cli_predict import predict
from gmmseg.cli_shared import judged_sets as _judged_sets
from gmmseg.cli_shared import leave_process_group as _leave_process_group
from gmmseg.cli_shared import next_prediction as _next_prediction
from gmmseg.cli_shared import open_set as _open
from gmmseg.cli_shared import stoppable as _stoppable
from gmmseg.cli_shared import validation_of as _validation_of
from gmmseg.json_tree import JSON
from gmmseg.printable import printable
from gmmseg.terminal import Bar, note, say

if TYPE_CHECKING:
    from gmmseg.config import Config
    from gmmseg.evaluation.evaluator import PostProcess
    from gmmseg.inference import FalseAlarms
    from gmmseg.models import Calibration, Segmenter
    from gmmseg.models.false_alarms import Per
    from gmmseg.samples import FingerprintedDataset

UNEXPECTED = "internal error"
"""How the message of an exception begins that no code expected."""

_FIRST = ("demo", "data", "train", "evaluate", "predict", "report", "app")
"""The commands that a new user needs, in the order of the need."""


class _NeededFirst(TyperGroup):
    """Lists the commands of _FIRST before the others."""

    def list_commands(self, ctx: object) -> list[str]:
        return sorted(self.commands, key=lambda name: (*_FIRST, name).index(name))


app = typer.Typer(
    name="gmmseg",
    cls=_NeededFirst,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Segmentation that knows what it does not know: train, evaluate and use models.",
)
data_app = typer.Typer(no_args_is_help=True, help="Check and list data sets.")
app.add_typer(data_app, name="data")
app.command()(adapt)
app.command()(predict)
app.command(name="app")(live_page)
app.command()(monitor)


def _show_version(wanted: bool) -> None:
    if wanted:
        from gmmseg import __version__

        say(f"gmmseg {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    pass


# Commands ----------------------------------------------------------------------------------------------


@app.command()
def train(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    preset: PresetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/<name of the configuration>.")
    ] = None,
    resume: ResumeOption = False,
    resume_from: ResumeFromOption = None,
    print_config: Annotated[bool, typer.Option(help="Only print the whole configuration.")] = False,
    cpu: Annotated[bool, typer.Option(help="Use the CPU even where there is a GPU.")] = False,
) -> None:
    """Train a segmenter; writes weights, checkpoints, log and configuration to the run folder.

    Several GPUs: torchrun --standalone --nproc-per-node 8 -m gmmseg.cli train CONFIG. The same works for
    calibrate, evaluate and predict.
    """
    from gmmseg import run
    from gmmseg.config import dump_config, load_config

    words = [*(overrides or []), *([f"preset={preset}"] if preset is not None else [])]
    settings = load_config(config, words)
    folder = out or Path("runs") / settings.name
    machine = run.machine_to_train_on(resume_from or (folder if resume else None), cpu)
    settings = load_config(config, words, machine)
    if print_config:
        say(dump_config(settings), nl=False)
    else:
        _train(settings, folder, resume, resume_from, cpu)


def _train(settings: "Config", folder: Path, resume: bool, resume_from: Path | None, cpu: bool) -> None:
    from gmmseg import run
    from gmmseg.training.checkpoint import named_checkpoint

    source = named_checkpoint(resume_from) if resume_from else folder if resume else None
    with _stoppable():
        weights = run.train(settings, folder, resume=source, cpu=cpu, say=note, tell=say)
    if run.join_processes().is_main_process:
        best = weights.with_name("best")
        first = f"best weights in {best}, which commands take for {folder}; those of the last step: "
        say((first if best.is_dir() else "weights in ") + str(weights))


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="hf:owner/name, smp:Unet/resnet34, torchvision:deeplabv3_resnet50, timm:BACKBONE, "
            "a name of the zoo, or a folder: of transformers, or of ours."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the weights.")],
    twin: Annotated[
        bool, typer.Option("--twin", help="Also write the softmax twin, to OUT/twin: same features.")
    ] = False,
    preset: Annotated[str, typer.Option(help="default, paper, reference or softmax.")] = "default",
    classes: Annotated[str, typer.Option(help="Names of the classes, comma separated.")] = "",
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Take the classes of this set, NAME:ROOT[:SPLIT].")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="pretrained, or a file, for sources that bring none. Default: random ones."),
    ] = None,
) -> None:
    """Any network by its name with a generative head, written as a folder of weights.

    Classes that the source knows by the same name keep their rows of its classifier in the twin.
    """
    from gmmseg import run

    names = _class_names(classes, data)
    model = run.convert_source(source, out, preset=preset, twin=twin, weights=weights, class_names=names)
    say(f"weights in {out}" + (f", of the softmax twin in {out / 'twin'}" if twin else ""))
    if not model.is_fitted:
        fitted = f", or fit them: gmmseg fit {out / 'twin'}" if twin else ""
        note(f"the mixtures know nothing yet: train them with gmmseg train CONFIG model.name={out}{fitted}")


@app.command()
def fit(
    model: Model,
    data: Annotated[str, typer.Option("--data", "-d", help="Labelled training set, NAME:ROOT[:SPLIT].")],
    out: Annotated[Path, typer.Option(help="Folder for the fitted weights.")],
    on: FitOnOption = "backbone",
    components: Annotated[int, typer.Option(min=1, help="Gaussians per class.")] = 5,
    passes: PassesOption = 10,
    calibrate: CalibrateOption = None,
) -> None:
    """Fit mixtures to a trained model without training it again; writes the weights of the new model.

    Each image is read once, and at most 4000 cells of each class are kept, 512 MB altogether.
    """
    from gmmseg import distributed, run
    from gmmseg.training.run_folder import refuse_weights

    fit_mixtures = run.way_to_fit(on)
    refuse_weights(out)
    dataset = _judged_sets(model, [data], "train")[0]
    validation = _judged_sets(model, [calibrate])[0] if calibrate else None
    segmenter = run.open_model(model).to(run.join_processes().device)
    if on == "backbone" and not run.can_be_split(segmenter):
        note(
            "this network cannot be split into backbone and decoder: its features before the classifier "
            "are taken"
        )
    with Bar("fitting") as bar:
        fitted, history = fit_mixtures(segmenter, dataset, components, passes=passes, progress=bar)
    main_says = distributed.said_once(say)
    main_says("mean log-likelihood at each pass: " + ", ".join(f"{value:.2f}" for value in history))
    if distributed.rank() == 0:
        fitted.save_pretrained(out)
    distributed.wait_for_all()
    main_says(f"weights in {out}")
    _calibrate_fitted(out, _validation_of(model) if validation is None else validation)


def _calibrate_fitted(folder: Path, dataset: "FingerprintedDataset | None") -> None:
    """Calibrate weights that were just fitted, if there is a set to do it on; says what comes next."""
    from gmmseg import distributed, run

    main_says = distributed.said_once(say)
    if dataset is None:
        command = f"gmmseg calibrate {folder} --data NAME:ROOT:val"
        main_says(f"next: {command}, which finds the threshold of the unknown")
        return
    with Bar("calibrating") as bar:
        run.calibrate_folders([folder], dataset, device=run.join_processes().device, progress=bar)
    main_says(f"calibrated on {dataset.name}/{dataset.split}; {_next_prediction(folder)}")


@app.command()
def calibrate(
    model: Annotated[Path, typer.Argument(help="Run folder, or a folder of weights.")],
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="Labelled images the model was not trained on, NAME:ROOT[:SPLIT]."),
    ],
    false_alarms: FalseAlarmsOption = None,
    per: PerOption = None,
    min_area: MinAreaOption = None,
) -> None:
    """Find the threshold of the unknown and the temperature of the posterior on your labelled images.

    The threshold keeps a promise of false alarms on new images like these (docs/thresholds.md). Also found
    are the typical evidence of each class and, for models with a density beside the head (`fit`), what the
    fused score needs. `train` does this on the validation set; use `calibrate` for fitted, imported or
    converted weights, and for images of another place. The values are saved beside the weights, which do not
    change, and are printed.
    """
    from gmmseg import run

    if model.is_file():
        run.open_model(model)  # says what kind of file it is, and what to give instead
    if not model.is_dir():
        raise FileNotFoundError(f"{model}: no such folder; give a run folder or a folder of weights")
    state = run.join_processes()
    asked = _false_alarms(false_alarms, per, min_area)
    with Bar("calibrating") as bar:
        found = run.calibrate(model, _open(data), false_alarms=asked, device=state.device, progress=bar)
    for folder, calibration in found.items() if state.is_main_process else ():
        _tell_calibration(folder, calibration)


def _false_alarms(alpha: float | None, per: str | None, min_area: int | None) -> "FalseAlarms | None":
    """What a threshold is to promise; None where nothing was asked for."""
    from gmmseg.inference import FalseAlarms

    if alpha is None and per is None and min_area is None:
        return None
    usual = FalseAlarms()
    return FalseAlarms(
        usual.alpha if alpha is None else alpha,
        usual.per if per is None else cast("Per", per),
        usual.min_area if min_area is None else min_area,
    )


def _tell_calibration(folder: Path, calibration: "Calibration") -> None:
    """Print what was found, and what its threshold promises."""
    threshold = "no threshold" if calibration.threshold is None else f"threshold {calibration.threshold:.4g}"
    say(f"{folder}: {threshold}, temperature {calibration.temperature:.3f}, in calibration.json")
    say(f"the threshold {calibration.promise_text()}")
    without = calibration.classes_without_own_threshold()
    if without:
        say(f"too few images for a threshold of its own: {printable(', '.join(without))}")


@app.command()
def evaluate(
    model: Model,
    data: DataOption,
    scores: ScoresOption = "",
    train_data: TrainDataOption = None,
    smooth: SmoothOption = False,
    suppress_boundaries: BoundariesOption = False,
    components: ComponentsOption = None,
    window: WindowOption = None,
    stride: StrideOption = None,
    short_side: ShortSideOption = None,
    out: ResultsOption = None,
) -> None:
    """Evaluate a model on labelled sets, anomaly sets, or both; writes results.json and prints a table.

    A run that held classes out (data.held_out) is evaluated on the other classes, and on how well it finds
    the hidden ones: both come from the same labelled set.
    """
    from gmmseg import run
    from gmmseg.models import InferenceSettings

    _refuse_unknown_components(components)
    segmenter, target = _model_and_results(model, out)
    with Bar("evaluating") as bar:
        results = run.evaluate(
            segmenter,
            Path(model).name,
            _judged_sets(model, data),
            run.Judging(
                [name for name in scores.split(",") if name],
                _steps(suppress_boundaries, smooth),
                components,
                InferenceSettings(short_side, window, stride),
            ),
            training_set=_judged_sets(model, [train_data], "train")[0] if train_data else None,
            progress=bar,
        )
    if run.join_processes().is_main_process:
        _record(results, target)
        run.refresh_cards(Path(model))


@app.command()
def score(
    scores: Annotated[
        Path, typer.Option(help="Folder of score maps: .npy, .npz, .png or .h5; higher = more anomalous.")
    ],
    masks: Annotated[Path, typer.Option(help="Folder of masks: 0 normal, 1 anomaly, 255 ignore.")],
    name: Annotated[str, typer.Option(help="Name of these scores in the results.")] = "scores",
    components: ComponentsOption = None,
    intervals: Annotated[
        bool, typer.Option(help="Also report confidence intervals by bootstrap over images.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where to write the results.")] = Path("results.json"),
) -> None:
    """Evaluate saved score maps of any method; writes results and prints a table. Needs no model."""
    from gmmseg.evaluation import evaluate_score_files
    from gmmseg.evaluation.records import refuse_other_model

    refuse_other_model(out, name, None)
    with Bar("scoring") as bar:
        results = evaluate_score_files(
            scores, masks, name=name, components=components, intervals=intervals, progress=bar
        )
    _record(results, out)


@app.command()
def compare(
    results: Annotated[list[Path], typer.Argument(help="results.json files.")],
    paper: Annotated[
        list[str] | None, typer.Option(help="Also show the figures that the paper reports for this model.")
    ] = None,
    format: Annotated[str, typer.Option(help="markdown, csv or latex.")] = "markdown",
) -> None:
    """Print results side by side, as a table."""
    from gmmseg.evaluation import load_results
    from gmmseg.report import tables

    if format not in ("markdown", "csv", "latex"):
        raise ValueError(f"unknown format {format!r}: choose markdown, csv or latex")
    comparison = tables.compare([load_results(path) for path in results], paper=paper or [])
    say(getattr(comparison, format)())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, results and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of both trainings.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each model.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Small networks without pretrained weights.")
    ] = False,
) -> None:
    """Train a GMM segmenter and its softmax twin on built-in scenes, evaluate both, write a report."""
    from gmmseg.run.demo import run_demo

    with Bar("judging") as bar, _stoppable():
        report = run_demo(out, seed=seed, steps=steps, from_scratch=from_scratch, say=say, progress=bar)
    say(f"report: {report}")


@app.command()
def report(
    sources: Annotated[
        list[Path], typer.Argument(help="Run folders or results.json files, the main one first.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Data sets for example pictures, NAME:ROOT[:SPLIT]."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write one HTML page about runs or results, with everything it shows inside the file."""
    from gmmseg.run.report import write_report

    write_report(sources, _judged_sets(sources[0], data or []), out)
    say(f"report: {out}")


@app.command(name="import")
def import_reference(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of the reference project (.pth).")],
    out: Annotated[Path, typer.Option(help="Folder for the weights.")],
) -> None:
    """Read a checkpoint of the reference project (SegFormer); writes its weights in gmmseg's format."""
    from gmmseg.models.reference_import import import_reference as read
    from gmmseg.training.run_folder import refuse_weights

    refuse_weights(out)
    read(checkpoint).save_pretrained(out)
    say(f"weights in {out}")


@app.command()
def zoo() -> None:
    """Print the names of the networks, each with a line about it, and how to name others."""
    from gmmseg.models import SOURCES, ZOO

    summaries = {name: entry.summary for name, entry in ZOO.items()}
    summaries |= {source.example: source.summary for source in SOURCES.values()}
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        say(f"{name:<{width}}  {summary}")


@app.command()
def configs() -> None:
    """Print the names of the configurations that come with the package."""
    from gmmseg.config import shipped_configs

    say("\n".join(shipped_configs()))


app.command()(export)
app.command()(bench)


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the data set, see `gmmseg data list`.")],
    root: Annotated[Path, typer.Argument(help="Its folder.")],
) -> None:
    """Check a data set; prints the pairs, missing or unreadable files, undefined labels and class shares.

    Ends with code 1 where something is wrong.
    """
    from gmmseg.data.check import check_dataset

    with Bar("checking") as bar:
        found = check_dataset(name, root, progress=bar)
    say(str(found))
    if not found.ok:
        raise typer.Exit(1)


@data_app.command(name="list")
def list_datasets() -> None:
    """Print the names of the known data sets."""
    from gmmseg.data import DATASETS

    say("\n".join(DATASETS))


@data_app.command()
def convert_coco_stuff(
    raw: Annotated[Path, typer.Argument(help="The unpacked COCO-Stuff 10k v1.1 release (.mat files).")],
    out: Annotated[Path, typer.Argument(help="Folder for images/ and annotations/.")],
) -> None:
    """Convert the raw .mat files of COCO-Stuff 10k; writes images and label PNGs."""
    from gmmseg.data.coco_stuff import convert

    with Bar("converting") as bar:
        counts = convert(raw, out, progress=bar)
    say(", ".join(f"{split}: {count}" for split, count in counts.items()))


for command in (add_class, remove_class, rename_class, merge_classes, explain):
    app.command()(command)
data_app.command()(convert_masks)


# What the commands share --------------------------------------------------------------------------------


def _class_names(classes: str, data: str | None) -> Sequence[str] | None:
    """Names of the classes, as they are listed or as a data set has them; None where nothing says so."""
    if classes and data:
        raise ValueError("--classes and --data both say which classes there are: give one of them")
    if classes:
        return [name.strip() for name in classes.split(",")]
    if not data:
        return None
    space = _open(data, default_split="train").label_space
    if space is None:
        raise ValueError(f"{data} marks what is unknown, not classes: give a labelled set, or --classes")
    return space.names


def _model_and_results(model: str, out: Path | None) -> tuple["Segmenter", Path]:
    """The model on this process's device, and the results file, which must not be another model's."""
    from gmmseg import run
    from gmmseg.evaluation.records import refuse_other_model
    from gmmseg.models.saving import digest

    segmenter = run.open_model(model).to(run.join_processes().device)
    folder = Path(model) if Path(model).is_dir() else Path(".")
    target = out or folder / "results.json"
    refuse_other_model(target, Path(model).name, digest(segmenter))
    return segmenter, target


def _refuse_unknown_components(components: str | None) -> None:
    from gmmseg.evaluation.components import PRESETS

    if components is not None and components not in PRESETS:
        raise ValueError(f"no component preset {components!r}; there are {', '.join(PRESETS)}")


def _steps(suppress_boundaries: bool, smooth: bool) -> "list[PostProcess]":
    """The steps of SML that are asked for, in their order."""
    from gmmseg.evaluation.postprocessing import BoundarySuppression, DilatedSmoothing

    return [
        *([BoundarySuppression()] if suppress_boundaries else []),
        *([DilatedSmoothing()] if smooth else []),
    ]


def _record(results: JSON, target: Path) -> None:
    """Write results to their file and print their table."""
    from gmmseg.evaluation.records import record_results
    from gmmseg.report.tables import compare, threshold_lines

    record_results(results, target)
    say(compare([results]).markdown())
    for line in threshold_lines(results):
        say(line)
    say(f"results in {target}")


def _join_lines_of_help() -> None:
    """Make each paragraph of a command's docstring one line, which the terminal breaks where it ends."""
    for command in (*app.registered_commands, *data_app.registered_commands):
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


_join_lines_of_help()


def main() -> None:
    """Run a command; errors a user can correct are one line, without traceback (GMMSEG_DEBUG=1 shows it)."""
    keep_freed_memory()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **more: note(str(message))
            app(prog_name="gmmseg")
    except SystemExit as done:
        if not done.code:
            _leave_process_group()
        raise
    except KeyboardInterrupt as stopped:
        _complain(str(stopped) or "interrupted", 130)
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        if os.environ.get("GMMSEG_DEBUG"):
            raise
        _complain(_in_a_line(error), 1)
    except Exception as error:  # nobody expected this one: a fault of the program, whatever the input
        if os.environ.get("GMMSEG_DEBUG"):
            raise
        advice = "please report it with what GMMSEG_DEBUG=1 shows"
        _complain(f"{UNEXPECTED} ({type(error).__name__}: {error}); {advice}", 1)


def _in_a_line(error: Exception) -> str:
    """What an error says; of one that came out of a worker or another process, what is worth saying."""
    said = str(error) or type(error).__name__
    if "Original Traceback" in said:  # a DataLoader's: the worker's own error is the last line
        return said.strip().splitlines()[-1].partition(": ")[2] or said
    if "Connection closed by peer" in said:
        return "another process has failed, and its own line says why; this one stops, too"
    return said


def _complain(message: str, code: int) -> None:
    """Print one line to the error stream and exit with ``code``."""
    print(f"gmmseg: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
