"""The main job in one command: a GMM segmenter and its softmax twin, trained, judged and shown."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.data.kept import Kept
from gmmseg.evaluation import write_results
from gmmseg.report.tables import compare
from gmmseg.run_report import write_picture, write_report
from gmmseg.training.run_folder import LOCK_FILE, PARTS, WorkInFolder, locked

MARK = ".demo"
"""A file in the folders a demo made, which the next one may clear."""
MODELS = {"gmm": "default", "softmax": "softmax"}
"""Name of the run -> head. Everything else is the same for both."""


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    say: Callable[[str], None],
    progress: run.Progress | None = None,
) -> Path:
    """Train and judge both models on the built-in scenes under ``out``; returns the path of the report."""
    with locked(out):
        _claim(out, ("report.html", "picture.png"))
        for name in MODELS:
            _clear(out / name)
        return _train_and_judge(out, seed, steps, say, progress)


def _train_and_judge(
    out: Path, seed: int, steps: int | None, say: Callable[[str], None], progress: run.Progress | None
) -> Path:
    started = time.perf_counter()
    test, anomalies = (Kept(open_dataset(name, None, "test")) for name in ("scenes", "scenes_anomaly"))
    results = []
    for name, head in MODELS.items():
        say(f"training {name} on the built-in street scenes")
        overrides = [f"name={name}", f"model.head={head}", f"train.seed={seed}"]
        overrides += [f"train.steps={steps}"] if steps else []
        run.train(load_config("scenes", overrides), out / name)
        say(f"judging {name} on scenes with known and with unknown objects")
        model = run.open_model(out / name)
        found = run.evaluate(model, name, [test, anomalies], seeds={"train": seed}, progress=progress)
        write_results(found, out / name / "results.json")
        results.append(found)
    say(compare(results).markdown())
    report = out / "report.html"
    write_report([out / name for name in MODELS], [test, anomalies], report)
    write_picture([out / name for name in MODELS], anomalies, out / "picture.png")
    say(f"done in {time.perf_counter() - started:.0f} s")
    return report


def _clear(folder: Path) -> None:
    """Remove the run of an earlier demo."""
    with locked(folder):
        _claim(folder, [path.name for path in folder.iterdir() if path.name != LOCK_FILE])
        for part in ("log.jsonl", "results.json", run.FINISHED_FILE):
            (folder / part).unlink(missing_ok=True)
        for part in PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)


def _claim(folder: Path, replaced: Sequence[str]) -> None:
    """Mark ``folder`` as the demo's; without a mark it may not hold what would be ``replaced``."""
    mark = folder / MARK
    found = [name for name in replaced if (folder / name).exists()]
    if found and not mark.is_file():
        raise WorkInFolder(
            f"{folder} holds {', '.join(sorted(found)[:4])} and was not made by `gmmseg demo`: "
            "choose another --out, or move it away"
        )
    mark.write_text("Made by `gmmseg demo`; the next demo with the same --out replaces it.\n")
