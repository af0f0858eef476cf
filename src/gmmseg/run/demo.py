"""The main job in one command: a GMM segmenter and its softmax twin, trained, judged and shown."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.data.cached import CachedDataset
from gmmseg.distributed import Say
from gmmseg.evaluation import write_results
from gmmseg.models.packaged import INSTALL, PACKAGED
from gmmseg.report.tables import compare
from gmmseg.run.report import write_picture, write_report
from gmmseg.run.train import FINISHED_FILE
from gmmseg.samples import Progress
from gmmseg.training.cached_crops import FOLDER, remove_crops
from gmmseg.training.run_folder import LOCK_FILE, PARTS, WorkInFolder, locked

MARK = ".demo"
"""A file in the folders a demo made, which the next one may clear."""
MODELS = {"gmm": "default", "softmax": "softmax"}
"""Name of the run -> preset. Everything else is the same for both."""


@dataclass(frozen=True)
class Course:
    """What a demo trains, and the two sets whose test splits it is judged on."""

    config: str
    known: str
    unknown: str


PRETRAINED = Course("streets", "streets", "streets_anomaly")
"""On ImageNet features of a frozen backbone."""
FROM_SCRATCH = Course("scenes", "scenes", "scenes_anomaly")
"""A small network from random weights, on smaller pictures."""


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    from_scratch: bool = False,
    say: Say,
    progress: Progress | None = None,
) -> Path:
    """Train and judge both models on built-in scenes under ``out``; returns the path of the report.

    Without the package of pretrained weights they are trained ``from_scratch``, and ``say`` is told so.
    """
    with locked(out):
        _make_room(out)
        course = FROM_SCRATCH if from_scratch else _course_to_be_had(say)
        settings = [f"train.seed={seed}", *([] if steps is None else [f"train.steps={steps}"])]
        with _no_crops_left(out):
            return _train_and_judge(course, out, settings, say, progress)


@contextmanager
def _no_crops_left(out: Path) -> Iterator[None]:
    """Remove the cached crops that the models share once both are trained, or the demo is stopped."""
    try:
        yield
    finally:
        remove_crops(out / FOLDER)


def _course_to_be_had(say: Say) -> Course:
    if PACKAGED["tf_efficientnet_lite0"].path is not None:
        return PRETRAINED
    say(f"no pretrained weights ({INSTALL} brings them): small networks are trained from scratch instead")
    return FROM_SCRATCH


def _train_and_judge(
    course: Course, out: Path, settings: list[str], say: Say, progress: Progress | None
) -> Path:
    started = time.perf_counter()
    test, anomalies = (
        CachedDataset(open_dataset(name, None, "test")) for name in (course.known, course.unknown)
    )
    results = []
    for name, preset in MODELS.items():
        say(f"training {name} on the built-in street scenes")
        config = load_config(course.config, [f"name={name}", f"preset={preset}", *settings])
        run.train(config, out / name, crops_in=out)  # both have the same backbone: one finds the other's
        say(f"judging {name} on scenes with known and with unknown objects")
        seeds = {"train": config.train.seed}
        found = run.evaluate(
            run.open_model(out / name), name, [test, anomalies], seeds=seeds, progress=progress
        )
        write_results(found, out / name / "results.json")
        run.refresh_cards(out / name)
        results.append(found)
    say(compare(results).markdown())
    report = out / "report.html"
    write_report([out / name for name in MODELS], [test, anomalies], report)
    write_picture([out / name for name in MODELS], anomalies, out / "picture.png")
    say(f"done in {time.perf_counter() - started:.0f} s")
    return report


def _make_room(out: Path) -> None:
    """Mark the folders as the demo's and remove the runs of an earlier one; first all of them are checked."""
    folders = [out / name for name in MODELS]
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(locked(folder))
        _refuse_foreign(out, [name for name in ("report.html", "picture.png") if (out / name).exists()])
        for folder in folders:
            _refuse_foreign(folder, [path.name for path in folder.iterdir() if path.name != LOCK_FILE])
        for folder in (out, *folders):
            (folder / MARK).write_text(
                "Made by `gmmseg demo`; the next demo with the same --out replaces it.\n"
            )
        for folder in folders:
            _clear(folder)


def _refuse_foreign(folder: Path, replaced: Sequence[str]) -> None:
    """Raise WorkInFolder where a demo would replace something in a folder that no demo has marked."""
    if replaced and not (folder / MARK).is_file():
        raise WorkInFolder(
            f"{folder} holds {', '.join(sorted(replaced)[:4])} and was not made by `gmmseg demo`: "
            "choose another --out, or move it away"
        )


def _clear(folder: Path) -> None:
    """Remove the run of an earlier demo."""
    for part in ("log.jsonl", "results.json", FINISHED_FILE):
        (folder / part).unlink(missing_ok=True)
    for part in PARTS:
        shutil.rmtree(folder / part, ignore_errors=True)
