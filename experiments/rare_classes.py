"""CamVid with 31 classes, many of them rare: labels of the default and of its twin, class by class.

    python experiments/rare_classes.py run --camvid31 DIR --weights FILE [--models FOLDER]
    python experiments/rare_classes.py table          from the files there are
    python experiments/rare_classes.py classes        IoU of each class, mean over seeds

The same network and training as in camvid.py. Variants are chosen on val; test is for the tables. ``DIR`` is
a folder data set: images/SPLIT, labels/SPLIT and classes.txt.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import cached
from camvid import COMMON, MAIN, ONE
from gmmseg import run
from gmmseg.config import dump_config, load_config
from gmmseg.data import open_dataset
from gmmseg.evaluation import write_results
from gmmseg.inference import Predictor, calibrate
from tables import percent, print_rows

RESULTS = Path(__file__).parent / "results" / "rare_classes"
VARIANTS = {
    "softmax": MAIN["softmax"],
    "softmax_x3": MAIN["softmax_x3"],
    "gmm_default": [],
    "one_decoder": ONE,
    "forget_by_batches": [*ONE, "em.decay_points=null"],
    "forget_by_1600_points": [*ONE, "em.decay_points=1600"],
    "components_2": [*ONE, "model.head.components=2", "em.decay_points=null"],
}


def run_one(variant: str, seed: int, arguments: argparse.Namespace) -> None:
    """Train and judge one variant with one seed on val and test; leaves VARIANT_SEED.json."""
    target = RESULTS / f"{variant}_{seed}.json"
    if target.is_file():
        return
    print(f"{variant}, seed {seed}", flush=True)
    overrides = [*COMMON, "data.name=folder", f"train.seed={seed}", *VARIANTS[variant]]
    places = [f"data.root={arguments.camvid31}", f"model.weights={arguments.weights}"]
    config = load_config("camvid", places + overrides)
    kept = arguments.models and arguments.models / f"rare_{variant}_{seed}"
    if kept and (kept / "done").is_file():
        model = run.open_model(kept)
    else:
        with tempfile.TemporaryDirectory() as folder:
            model, _ = cached.train(config, Path(folder))
        model.calibration = calibrate(Predictor(model), run.validation_data(config.data))
    sets = [open_dataset("folder", arguments.camvid31, split) for split in ("val", "test")]
    results = run.evaluate(model, variant, sets, seeds={"train": seed})
    for entry in results["sets"].values():
        entry["asked"].pop("root")  # where the data lie says nothing about the result
    results["overrides"] = overrides
    results["config"] = dump_config(load_config("camvid", overrides))
    write_results(results, target)


def _entries(variant: str) -> list[dict[str, Any]]:
    """The sets of every seed there is a file of."""
    return [json.loads(file.read_text())["sets"] for file in sorted(RESULTS.glob(f"{variant}_[0-9].json"))]


def _occurring(entry: dict[str, Any]) -> float:
    """Mean IoU over the classes that occur in the labels: a class predicted where it never is costs others
    alone."""
    # What is not a number is written as the word nan.
    classes = entry["classes"].values()
    return statistics.mean(each["iou"] for each in classes if not math.isnan(float(each["accuracy"])))


def print_table() -> None:
    """Mean and standard deviation over seeds."""
    heads = [
        "variant",
        "seeds",
        "val: mIoU",
        "of classes there",
        "test: mIoU",
        "of classes there",
        "test: ECE",
    ]
    print_rows(heads, _rows())


def _rows() -> Iterator[list[str]]:
    for variant in VARIANTS:
        found = _entries(variant)
        if not found:
            continue
        cells = []
        for key in ("folder/val", "folder/test"):
            cells.append(percent(each[key]["metrics"]["miou"] for each in found))
            cells.append(percent(_occurring(each[key]) for each in found))
        cells.append(percent(each["folder/test"]["metrics"]["ece"] for each in found))
        yield [variant, str(len(found)), *cells]


def print_classes() -> None:
    """IoU of each class of test, mean over seeds, of the default and its twin."""
    twin, ours = _entries("softmax"), _entries("gmm_default")
    print("| class | softmax | gmm_default |\n|---|---|---|")
    for name, first in twin[0]["folder/test"]["classes"].items():
        if math.isnan(float(first["accuracy"])):
            continue
        means = [
            statistics.mean(each["folder/test"]["classes"][name]["iou"] for each in found)
            for found in (twin, ours)
        ]
        print(f"| {name} | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table", "classes"])
    parser.add_argument("--camvid31", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--models", type=Path, help="folder that trained models are taken from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--threads", type=int, help="torch threads of this process")
    arguments = parser.parse_args()
    if arguments.what == "table":
        return print_table()
    if arguments.what == "classes":
        return print_classes()
    if arguments.camvid31 is None or arguments.weights is None:
        parser.error("--camvid31 and --weights are needed to train")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for seed in arguments.seeds:
        for variant in arguments.variants:
            run_one(variant, seed, arguments)
    return print_table()


if __name__ == "__main__":
    main()
