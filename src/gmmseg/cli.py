"""Words -> run.*: the command line. Nothing heavy is imported before a command runs."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gmmseg.printable import printable

UNEXPECTED = "internal error"
"""How the message of an exception begins that no code expected."""

app = typer.Typer(
    name="gmmseg",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Segmentation that knows what it does not know: train, judge, see.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets.")
app.add_typer(data_app, name="data")

Model = Annotated[
    str, typer.Argument(help="Run folder, folder of weights, or hf:owner/name on the Hugging Face hub.")
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data", "-d", help="NAME:ROOT[:SPLIT], such as camvid:~/camvid:test. May be given several times."
    ),
]

_OVERRIDE = "Default: as in the model's validation; 0 for none."
WindowOption = Annotated[int | None, typer.Option(min=0, help=f"Side of sliding windows. {_OVERRIDE}")]
StrideOption = Annotated[int | None, typer.Option(min=0, help=f"Stride of sliding windows. {_OVERRIDE}")]
ShortSideOption = Annotated[
    int | None, typer.Option(min=0, help=f"Resize images to this shorter side first. {_OVERRIDE}")
]


@app.command()
def train(
    config: Annotated[
        str, typer.Argument(help="A .yaml or .toml file, or the name of a shipped configuration.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, such as train.steps=100.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/<name of the configuration>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the run in this folder from its newest checkpoint.")
    ] = False,
    resume_from: Annotated[
        Path | None, typer.Option(help="Continue from this checkpoint file, or run folder.")
    ] = None,
    print_config: Annotated[bool, typer.Option(help="Print the whole configuration and leave.")] = False,
    cpu: Annotated[bool, typer.Option(help="Use the CPU even where there is a GPU.")] = False,
) -> None:
    """Train a segmenter.

    Several GPUs: torchrun --standalone --nproc-per-node 8 -m gmmseg.cli train CONFIG. The same works for
    calibrate, evaluate and predict.
    """
    from gmmseg.config import dump_config, load_config

    settings = load_config(config, overrides or [])
    if print_config:
        _say(dump_config(settings), nl=False)
        return
    from gmmseg import run
    from gmmseg.training.checkpoint import named_checkpoint

    folder = out or Path("runs") / settings.name
    source = named_checkpoint(resume_from) if resume_from else folder if resume else None
    with _stoppable():
        weights = run.train(settings, folder, resume=source, cpu=cpu, say=_note)
    if run.join_processes().is_main_process:
        _say(f"weights in {weights}")


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

    if classes and data:
        raise ValueError("--classes and --data both say which classes there are: give one of them")
    names: Any = [name.strip() for name in classes.split(",")] if classes else None
    if data:
        space = _open(data, default_split="train").label_space
        if space is None:
            raise ValueError(f"{data} marks what is unknown, not classes: give a labelled set, or --classes")
        names = space.names
    model = run.convert_source(source, out, head=preset, twin=twin, weights=weights, class_names=names)
    _say(f"weights in {out}" + (f", of the softmax twin in {out / 'twin'}" if twin else ""))
    if not model.is_fitted:
        fitted = f", or fit them: gmmseg fit {out / 'twin'}" if twin else ""
        _note(f"the mixtures know nothing yet: train them with gmmseg train CONFIG model.name={out}{fitted}")


@app.command()
def fit(
    model: Model,
    data: Annotated[str, typer.Option("--data", "-d", help="Labelled training set, NAME:ROOT[:SPLIT].")],
    out: Annotated[Path, typer.Option(help="Folder for the fitted weights.")],
    components: Annotated[int, typer.Option(min=1, help="Gaussians per class.")] = 5,
    passes: Annotated[int, typer.Option(min=1, help="Passes of EM over the set, at most.")] = 20,
) -> None:
    """Fit mixtures on the frozen features of a trained softmax model (the paper's post-hoc variant)."""
    from gmmseg import run
    from gmmseg.training.run_folder import refuse_weights

    refuse_weights(out)
    dataset = run.judged_sets(model, _open(data, default_split="train"))[0]
    with _Bar("fitting") as bar:
        fitted, history = run.fit(run.open_model(model), dataset, components, passes=passes, progress=bar)
    _say("mean log-likelihood at each pass: " + ", ".join(f"{value:.2f}" for value in history))
    fitted.save_pretrained(out)
    _say(f"weights in {out}")


@app.command()
def calibrate(
    model: Annotated[Path, typer.Argument(help="Run folder, or a folder of weights.")],
    data: Annotated[
        str, typer.Option("--data", "-d", help="Labelled images not trained on, NAME:ROOT[:SPLIT].")
    ],
) -> None:
    """Choose the unknown's threshold and the posterior's temperature anew, on labelled images of yours.

    Also what is typical of each class. `train` does so by itself on the validation set; this is for fitted,
    imported or converted weights, and for images of another place. The weights stay as they are.
    """
    from gmmseg import run

    if not model.is_dir():
        raise FileNotFoundError(f"{model}: no such folder; give a run folder or a folder of weights")
    state = run.join_processes()
    with _Bar("calibrating") as bar:
        chosen = run.calibrate(model, _open(data), device=state.device, progress=bar)
    for folder, choices in chosen.items() if state.is_main_process else ():
        _say(f"{folder}: threshold {choices.threshold:.4g}, temperature {choices.temperature:.3f}")


@app.command()
def evaluate(
    model: Model,
    data: DataOption,
    scores: Annotated[
        str, typer.Option(help="Anomaly scores, comma separated. Default: those of the head.")
    ] = "",
    train_data: Annotated[
        str | None, typer.Option(help="Training set for scores that need statistics.")
    ] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Also report scores after SML's dilated smoothing.")
    ] = False,
    suppress_boundaries: Annotated[
        bool,
        typer.Option("--suppress-boundaries", help="Also report scores after SML's boundary suppression."),
    ] = False,
    components: Annotated[str | None, typer.Option(help="Component metrics: anomaly or obstacle.")] = None,
    window: WindowOption = None,
    stride: StrideOption = None,
    short_side: ShortSideOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Results file; what it holds already is kept. Default: results.json beside the model."
        ),
    ] = None,
) -> None:
    """Judge a model on labelled sets, anomaly sets, or both; writes results.json and prints a table.

    A run that held classes out (data.held_out) is judged on the others, and on how well it finds the hidden
    ones: both come from the same labelled set.
    """
    from gmmseg import run
    from gmmseg.evaluation.components import PRESETS
    from gmmseg.evaluation.postprocessing import BoundarySuppression, DilatedSmoothing
    from gmmseg.evaluation.records import record_results, refuse_other_model
    from gmmseg.models import InferenceSettings
    from gmmseg.models.saving import digest
    from gmmseg.report.tables import compare

    if components is not None and components not in PRESETS:
        raise ValueError(f"no component preset {components!r}; there are {', '.join(PRESETS)}")
    state = run.join_processes()
    steps: list[Any] = [BoundarySuppression()] if suppress_boundaries else []
    steps += [DilatedSmoothing()] if smooth else []
    segmenter = run.open_model(model).to(state.device)
    target = out or _beside(model) / "results.json"
    refuse_other_model(target, Path(model).name, digest(segmenter))
    with _Bar("evaluating") as bar:
        results = run.evaluate(
            segmenter,
            Path(model).name,
            [part for each in data for part in run.judged_sets(model, _open(each))],
            score_names=[name for name in scores.split(",") if name],
            training_set=run.judged_sets(model, _open(train_data, default_split="train"))[0]
            if train_data
            else None,
            steps=steps,
            components=components,
            inference=InferenceSettings(short_side, window, stride),
            progress=bar,
        )
    if state.is_main_process:
        record_results(results, target)
        _say(compare([results]).markdown())
        _say(f"results in {target}")


@app.command()
def score(
    scores: Annotated[
        Path, typer.Option(help="Folder of score maps: .npy, .npz, .png or .h5; higher = stranger.")
    ],
    masks: Annotated[Path, typer.Option(help="Folder of masks: 0 normal, 1 anomaly, 255 ignore.")],
    name: Annotated[str, typer.Option(help="What to call these scores.")] = "scores",
    components: Annotated[str | None, typer.Option(help="Component metrics: anomaly or obstacle.")] = None,
    intervals: Annotated[bool, typer.Option(help="Confidence intervals by bootstrap over images.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write the results.")] = Path("results.json"),
) -> None:
    """Judge anybody's saved score maps with the same code; no model needed."""
    from gmmseg.evaluation import evaluate_score_files, record_results
    from gmmseg.evaluation.records import refuse_other_model
    from gmmseg.report.tables import compare

    refuse_other_model(out, name, None)
    with _Bar("scoring") as bar:
        results = evaluate_score_files(
            scores, masks, name=name, components=components, intervals=intervals, progress=bar
        )
    record_results(results, out)
    _say(compare([results]).markdown())
    _say(f"results in {out}")


@app.command()
def compare(
    results: Annotated[list[Path], typer.Argument(help="results.json files.")],
    paper: Annotated[
        list[str] | None, typer.Option(help="Quote the paper's figures of this model beside them.")
    ] = None,
    format: Annotated[str, typer.Option(help="markdown, csv or latex.")] = "markdown",
) -> None:
    """Results side by side."""
    from gmmseg.evaluation import load_results
    from gmmseg.report import tables

    if format not in ("markdown", "csv", "latex"):
        raise ValueError(f"unknown format {format!r}: choose markdown, csv or latex")
    comparison = tables.compare([load_results(path) for path in results], paper=paper or [])
    _say(getattr(comparison, format)())


@app.command()
def predict(
    inputs: Annotated[list[Path], typer.Argument(help="Images, folders of images, or videos.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Run folder, folder of weights, or hf:owner/name on the hub.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("predictions"),
    raw: Annotated[bool, typer.Option(help="Also write labels, posterior and anomaly as .npz.")] = False,
    window: WindowOption = None,
    stride: StrideOption = None,
    short_side: ShortSideOption = None,
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Largest image to read. Default: 67 million pixels.")
    ] = None,
) -> None:
    """Label map, overlay, anomaly heat map and unknown mask of images, folders and videos."""
    from gmmseg import distributed, run
    from gmmseg.images import MAX_PIXELS
    from gmmseg.inference import Predictor, predict_files

    state = run.join_processes()
    predictor = Predictor(
        run.open_model(model),
        short_side=short_side,
        window=window,
        stride=stride,
        max_pixels=max_pixels or MAX_PIXELS,
        device=state.device,
    )
    if predictor.segmenter.threshold is None and state.is_main_process:
        _note(f"{model} has no threshold yet, so no unknown masks; gmmseg calibrate {model} finds one")
    with _Bar("predicting") as bar:
        summary = predict_files(predictor, inputs, out, raw=raw, progress=bar)
    if state.is_main_process:
        _say(f"{summary.done} done, in {summary.out_dir}")
        for name, reason in summary.failed:
            _say(f"not done: {printable(name)}: {printable(reason)}", err=True)
    distributed.wait_for_all()  # a launcher ends all processes when the first one reports a failure
    if summary.failed:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, results and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of both trainings.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each model.")] = None,
) -> None:
    """Train a GMM segmenter and its softmax twin on built-in scenes, judge both, write a report."""
    from gmmseg.run.demo import run_demo

    with _Bar("judging") as bar, _stoppable():
        report = run_demo(out, seed=seed, steps=steps, say=_say, progress=bar)
    _say(f"report: {report}")


@app.command()
def report(
    sources: Annotated[
        list[Path], typer.Argument(help="Run folders or results.json files, the subject first.")
    ],
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", help="NAME:ROOT[:SPLIT] for pictures.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
) -> None:
    """One self-contained HTML page about runs or results."""
    from gmmseg import run
    from gmmseg.run.report import write_report

    write_report(
        sources, [part for each in data or [] for part in run.judged_sets(sources[0], _open(each))], out
    )
    _say(f"report: {out}")


@app.command(name="import")
def import_reference(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of the reference project (.pth).")],
    out: Annotated[Path, typer.Option(help="Folder for the weights in our format.")],
) -> None:
    """Read a checkpoint of the reference project (SegFormer) and write it in our format."""
    from gmmseg.models.reference_import import import_reference as read
    from gmmseg.training.run_folder import refuse_weights

    refuse_weights(out)
    read(checkpoint).save_pretrained(out)
    _say(f"weights in {out}")


@app.command()
def zoo() -> None:
    """The named networks, and how to name others."""
    from gmmseg.models import SOURCES, ZOO

    summaries = {name: entry.summary for name, entry in ZOO.items()}
    summaries |= {source.example: source.summary for source in SOURCES.values()}
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        _say(f"{name:<{width}}  {summary}")


@app.command()
def configs() -> None:
    """The configurations that come with the package."""
    from gmmseg.config import shipped_configs

    _say("\n".join(shipped_configs()))


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the data set, see `gmmseg data list`.")],
    root: Annotated[Path, typer.Argument(help="Its folder.")],
) -> None:
    """Count pairs, find missing or unreadable files and undefined labels, show class shares."""
    from gmmseg.data.check import check_dataset

    with _Bar("checking") as bar:
        found = check_dataset(name, root, progress=bar)
    _say(str(found))
    if not found.ok:
        raise typer.Exit(1)


@data_app.command(name="list")
def list_datasets() -> None:
    """The data sets known by name."""
    from gmmseg.data import DATASETS

    _say("\n".join(DATASETS))


@data_app.command()
def convert_coco_stuff(
    raw: Annotated[Path, typer.Argument(help="The unpacked COCO-Stuff 10k v1.1 release (.mat files).")],
    out: Annotated[Path, typer.Argument(help="Folder for images/ and annotations/.")],
) -> None:
    """COCO-Stuff 10k from its raw .mat files to images and label PNGs."""
    from gmmseg.data.coco_stuff import convert

    with _Bar("converting") as bar:
        counts = convert(raw, out, progress=bar)
    _say(", ".join(f"{split}: {count}" for split, count in counts.items()))


def _say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print lines of text; names in it may hold anything, and none of it may steer the terminal."""
    typer.echo(printable(text, keep="\n"), nl=nl, err=err)


def _note(message: str) -> None:
    """Something worth knowing that is no result: one line to the error stream."""
    _say(f"gmmseg: {printable(message)}", err=True)


@contextmanager
def _stoppable() -> Iterator[None]:
    """A training asked to stop says where its state is and how to go on; typer would drop its words."""
    from gmmseg.training.trainer import Interrupted

    try:
        yield
    except Interrupted as stopped:
        _note(str(stopped))
        _leave_process_group()  # all processes stop together
        raise typer.Exit(130) from None


class _Bar:
    """A progress callback (done, total, name) that draws a bar; starts anew when the count does."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.bar: Any = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, done: int, total: int | None, name: str = "") -> None:
        from tqdm import tqdm

        if self.bar is None or done < self.bar.n or total != self.bar.total:
            self.__exit__()
            silent = os.environ.get("RANK", "0") != "0"  # one bar for all processes
            self.bar = tqdm(total=total, desc=self.what, unit="image", dynamic_ncols=True, disable=silent)
        self.bar.update(done - self.bar.n)


def _open(spec: str, default_split: str | None = None) -> Any:
    """The data set of NAME:ROOT[:SPLIT]; the built-in scenes are NAME[::SPLIT]."""
    from gmmseg.data import open_dataset

    name, _, rest = spec.partition(":")
    root, _, split = rest.rpartition(":") if ":" in rest else (rest, "", "")
    chosen = split or default_split or (None if _is_anomaly_set(name) else "val")
    return open_dataset(name, os.path.expanduser(root) or None, chosen)


def _is_anomaly_set(name: str) -> bool:
    from gmmseg.data.catalog import LAYOUTS

    return name == "scenes_anomaly" or (name in LAYOUTS and LAYOUTS[name].label_space is None)


def _beside(model: str) -> Path:
    folder = Path(model)
    return folder if folder.is_dir() else Path(".")


def main() -> None:
    """Run a command; errors a user can mend are one line, without a traceback (GMMSEG_DEBUG=1 shows it)."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **more: _note(str(message))
            app()
    except SystemExit as done:
        if not done.code:
            _leave_process_group()
        raise
    except KeyboardInterrupt as stopped:
        _complain(str(stopped) or "interrupted", 130)
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        if os.environ.get("GMMSEG_DEBUG"):
            raise
        _complain(str(error) or type(error).__name__, 1)
    except Exception as error:  # nobody expected this one: a fault of the program, whatever the input
        if os.environ.get("GMMSEG_DEBUG"):
            raise
        advice = "please report it with what GMMSEG_DEBUG=1 shows"
        _complain(f"{UNEXPECTED} ({type(error).__name__}: {error}); {advice}", 1)


def _complain(message: str, code: int) -> None:
    """One line on the error stream, and out."""
    print(f"gmmseg: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _leave_process_group() -> None:
    """Only after success. After an error the launcher ends the other processes, and waiting would hang."""
    if "torch.distributed" in sys.modules:
        from gmmseg import distributed

        distributed.leave()


if __name__ == "__main__":
    main()
