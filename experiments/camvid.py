"""CamVid and Road Anomaly at the scale of a CPU: one command per table, one JSON file per run.

    python experiments/camvid.py main --camvid DIR --road-anomaly DIR --weights FILE --seeds 0 1 2
    python experiments/camvid.py choose --camvid DIR --weights FILE        held-out classes, CamVid val
    python experiments/camvid.py table main                                the table of the files there are

A run that has its file already is passed over, so a command can be stopped and started again. Settings are
chosen on CamVid val and on held-out classes; Road Anomaly is looked at in `main` alone.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.evaluation import write_results

RESULTS = Path(__file__).parent / "results"
HELD_OUT = "[car,pedestrian,bicyclist]"
COMMON = ["train.backbone_multiplier=0", "train.validate_every=100000", "train.save_every=100000"]

# Variant -> what differs from the shipped camvid configuration.
MAIN = {
    "softmax": ["model.head=softmax"],
    "gmm_default": [],
    "gmm_paper": ["model.head=paper", "em.preset=paper", "em.memory_size=2000"],
    "gmm_reference": [
        "model.head=reference",
        "em.preset=reference",
        "em.memory_size=2000",
        "train.component_weight=0.01",
        "data.balanced=true",
    ],
}
CHOOSE = {
    **MAIN,
    "gmm_l2": ["model.head.projection=l2"],
    "gmm_slow_memory": ["em.decay=0.99"],
    "gmm_one_component": ["model.head.components=1"],
    "gmm_plain_em": ["em.balanced=false", "em.hard=false"],
}
TABLES = {"main": MAIN, "choose": CHOOSE}


def one_run(table: str, variant: str, seed: int, arguments: argparse.Namespace) -> None:
    """Train and judge one variant with one seed; leaves results/TABLE/VARIANT_SEED.json."""
    target = RESULTS / table / f"{variant}_{seed}.json"
    if target.is_file():
        return
    overrides = [
        *COMMON,
        f"data.root={arguments.camvid}",
        f"model.weights={arguments.weights}",
        f"train.seed={seed}",
        f"train.steps={arguments.steps}",
        *TABLES[table][variant],
    ]
    overrides += [f"data.held_out={HELD_OUT}"] if table == "choose" else []
    config = load_config("camvid", overrides)
    with tempfile.TemporaryDirectory() as folder:
        run.train(config, Path(folder))
        model = run.open_model(Path(folder) / "final")
    if table == "choose":
        sets = [run.validation_data(config.data), run.hidden_data(config.data, "val")]
    else:
        sets = [
            open_dataset("camvid", arguments.camvid, "test"),
            open_dataset("road_anomaly", arguments.road_anomaly),
        ]
    results = run.evaluate(model, variant, sets, seeds={"train": seed})
    results["overrides"] = [each for each in overrides if not each.startswith(("data.root", "model.weights"))]
    for entry in results["sets"].values():
        for score in entry.get("scores", {}).values():
            del score["curve"]  # for drawing; the numbers stay
    target.parent.mkdir(parents=True, exist_ok=True)
    write_results(results, target)


def print_table(table: str) -> None:
    """Mean and standard deviation over seeds, for every variant and score there are files of."""
    print("| variant: score | seeds | mIoU | ECE | AUROC | AP | FPR95 |\n|---|---|---|---|---|---|---|")
    for variant in TABLES[table]:
        files = sorted((RESULTS / table).glob(f"{variant}_[0-9]*.json"))
        found = [json.loads(file.read_text()) for file in files]
        if not found:
            continue
        closed = [
            next(e for e in each["sets"].values() if e["task"] == "closed_set")["metrics"] for each in found
        ]
        strange = [
            next(e for e in each["sets"].values() if e["task"] == "anomaly")["scores"] for each in found
        ]
        for score in strange[0]:
            cells = [_spread([each[key] for each in closed]) for key in ("miou", "ece")]
            cells += [_spread([each[score][key] for each in strange]) for key in ("auroc", "ap", "fpr95")]
            print(f"| {variant}: {score} | {len(found)} | {' | '.join(cells)} |")


def _spread(values: list[float]) -> str:
    percent = [100 * value for value in values]
    deviation = statistics.stdev(percent) if len(percent) > 1 else 0.0
    return f"{statistics.mean(percent):.1f} ± {deviation:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*TABLES, "table"])
    parser.add_argument("which", nargs="?", choices=list(TABLES), help="with table: which one")
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--road-anomaly", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--variants", nargs="+", help="only these")
    arguments = parser.parse_args()
    if arguments.what == "table":
        print_table(arguments.which or "main")
        return
    for seed in arguments.seeds:
        for variant in arguments.variants or TABLES[arguments.what]:
            one_run(arguments.what, variant, seed, arguments)
    print_table(arguments.what)


if __name__ == "__main__":
    main()
