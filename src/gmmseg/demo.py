"""The main job in one command: a GMM segmenter and its softmax twin, trained, judged and shown."""

import time
from collections.abc import Callable
from pathlib import Path

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.data.kept import Kept
from gmmseg.evaluation import write_results
from gmmseg.report.tables import compare
from gmmseg.run_report import write_picture, write_report

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
    started = time.perf_counter()
    test, anomalies = (Kept(open_dataset(name, None, "test")) for name in ("scenes", "scenes_anomaly"))
    results = []
    for name, head in MODELS.items():
        say(f"training {name} on the built-in street scenes")
        overrides = [f"name={name}", f"model.head={head}", f"train.seed={seed}"]
        overrides += [f"train.steps={steps}"] if steps else []
        run.train(load_config("scenes", overrides), _empty(out / name))
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


def _empty(folder: Path) -> Path:
    """A run folder of the demo's own, cleared of an earlier demo."""
    for part in ("log.jsonl", "results.json"):
        (folder / part).unlink(missing_ok=True)
    for checkpoint in (folder / "checkpoints").glob("*.pt"):
        checkpoint.unlink()
    return folder
