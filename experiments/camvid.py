"""CamVid and Road Anomaly at the scale of a CPU: one command per table, one JSON file per run.

    python experiments/camvid.py closed --camvid DIR --weights FILE --road-anomaly DIR
    python experiments/camvid.py held_out --camvid DIR --weights FILE       hidden classes, CamVid test
    python experiments/camvid.py ablations --camvid DIR --weights FILE      hidden classes, another drive
    python experiments/camvid.py choices --camvid DIR --weights FILE        the same, of the present default
    python experiments/camvid.py paper --camvid DIR --weights FILE          the same, of the paper's head
    python experiments/camvid.py table closed     (held_out, ablations, demo_from_scratch) from files; --short
    python experiments/camvid.py calibration                                docs/figures/calibration.svg

A frozen EfficientNet-Lite0 under a light decoder, trained on cached crops (see cached.py). A run that has
its file already is passed over, so a command can be stopped and started again, and `--share 1/2` and
`--share 2/2` divide the work between two processes. Settings are chosen by the ablations: trained on two of
the three drives of CamVid train, with classes hidden, and judged on the third. The
temperature of the posterior and what is typical of each class are found on CamVid val, for every head, and
the calibration error as trained is reported too; the ablations do without. Road Anomaly is looked at in
`closed` alone, CamVid test in `closed` and `held_out`.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import cached
from gmmseg import run
from gmmseg.atomic import write_bytes
from gmmseg.config import Config, DataSettings, dump_config, load_config
from gmmseg.data import open_dataset
from gmmseg.evaluation import load_results, write_results
from gmmseg.inference import Predictor, calibrate
from gmmseg.models import InferenceSettings, Segmenter
from gmmseg.models.density import CellDensity
from gmmseg.report import plots
from tables import MEASURES, percent, print_rows

RESULTS = Path(__file__).parent / "results"
HELD_OUT = "data.held_out=[car,pedestrian,bicyclist]"
OTHER_DRIVE = "0001TP"  # at dusk; CamVid val is a stretch of the drive that most of train comes from
ONE = ["train.decoders=1"]
BEFORE = ["em.decay_points=null", *ONE]
"""Where the ablations differ from the default: in them every batch makes a class forget alike, and there is
one decoder."""
COMMON = ["train.validate_every=100000", "train.save_every=100000", "train.cached_crops=5"]
SHORT = "train.steps=500"  # ablations

# Variant -> what differs from the shipped camvid configuration.
MAIN = {
    "softmax": ["preset=softmax"],
    "softmax_x3": ["preset=softmax", "train.decoders=3"],
    "gmm_default": [],
    "one_decoder": ONE,
    "gmm_paper": ["preset=paper"],
    "gmm_reference": ["preset=reference"],
}
POLE = ["model.head.projection=batch_norm", "model.head.coordinates=pole"]
QUEUE = ["em.memory=queue", "em.memory_float16=true"]
ABLATIONS = {
    "softmax": MAIN["softmax"],
    "gmm_default": [],
    "forget_by_points": ["em.decay_points=400"],
    "post_hoc": MAIN["softmax"],
    "discriminative": ["model.head.discriminative=true", *POLE],
    "plain_em": ["em.balanced=false", "em.hard=false"],
    "plain_em_ten_loops": ["em.balanced=false", "em.hard=false", "em.loops=10"],
    "soft_balanced": ["em.hard=false"],
    "components_1": ["model.head.components=1"],
    "components_3": ["model.head.components=3"],
    "components_10": ["model.head.components=10"],
    "no_memory": [*QUEUE, "em.memory_size=0"],
    "queue_1000": [*QUEUE, "em.memory_size=1000"],
    "queue_32000": [*QUEUE, "em.memory_size=32000"],
    "slow_forgetting": ["em.decay=0.99"],
    "constant_forgetting": ["em.anneal=false"],
    "no_likelihood_term": ["train.likelihood_weight=0"],
    "likelihood_1": ["train.likelihood_weight=1"],
    "component_term": ["train.likelihood_weight=0", "train.component_weight=0.01"],
    "batch_norm_points": POLE,
    "unit_length_points": ["model.head.coordinates=sphere"],
    "reference_points": ["model.head.projection=reference", "model.head.coordinates=sphere"],
    "best_component": ["model.head.winner=true"],
    "dim_32": ["model.head.dim=32"],
    "dim_128": ["model.head.dim=128"],
    "balanced_sampling": ["data.balanced=true"],
    "slow_link": ["train.link_multiplier=5"],
    "stiff_start": ["model.head.temperature=1"],
    "bayes_link": ["model.head.link=bayes"],
    "class_norm_link": ["model.head.link=class_norm"],
    "softmax_warm_up": ["train.softmax_steps=250"],
}
WITH_DENSITY = ("softmax", "gmm_default", "forget_by_points")
"""Ablations that get a density beside their head, and are calibrated on CamVid val."""
CHOICES = {
    **{name: MAIN[name] for name in ("softmax", "softmax_x3", "gmm_default", "one_decoder")},
    "likelihood_0.1": [*ONE, "train.likelihood_weight=0.1"],
    "no_likelihood_term": [*ONE, "train.likelihood_weight=0"],
    "likelihood_0.6": [*ONE, "train.likelihood_weight=0.6"],
    "likelihood_0.6_link_10": [*ONE, "train.likelihood_weight=0.6", "train.link_multiplier=10"],
    "likelihood_1": [*ONE, "train.likelihood_weight=1"],
    "slow_link": [*ONE, "train.link_multiplier=5"],
    "likelihood_1_slow_link": [*ONE, "train.likelihood_weight=1", "train.link_multiplier=5"],
    "averaged": [*ONE, "train.ema=0.99"],
    "averaged_flat": [*ONE, "train.ema=0.99", "train.power=0.4"],
    "softmax_averaged_flat": [*MAIN["softmax"], "train.ema=0.99", "train.power=0.4"],
    "pure_cells": ONE,
}
"""The default as it is now, a density beside every head, and what might be better. What was tried with one
decoder on the way has one."""
PAPER = MAIN["gmm_paper"]
PAPER_ABLATIONS = {
    "softmax": MAIN["softmax"],
    "gmm_paper": PAPER,
    "loops_5": [*PAPER, "em.loops=5"],
    "loops_10": [*PAPER, "em.loops=10"],
    "plain_em": [*PAPER, "em.balanced=false"],
    "plain_em_ten_loops": [*PAPER, "em.balanced=false", "em.loops=10"],
    "components_1": [*PAPER, "model.head.components=1"],
    "components_3": [*PAPER, "model.head.components=3"],
    "components_10": [*PAPER, "model.head.components=10"],
    "components_15": [*PAPER, "model.head.components=15"],
    "memory_0": [*PAPER, "em.memory_size=0"],
    "memory_8000": [*PAPER, "em.memory_size=8000"],
    "memory_16000": [*PAPER, "em.memory_size=16000"],
    "memory_48000": [*PAPER, "em.memory_size=48000"],
    "discriminative": [*PAPER, "model.head.discriminative=true"],
    "post_hoc_64": MAIN["softmax"],
}
"""The ablations that the paper prints, on its own head."""
POST_HOC = {"post_hoc": None, "post_hoc_64": 64}
"""Variants whose mixtures are fitted after training -> on how many principal components of the features."""
TABLES = {
    "closed": MAIN,
    "held_out": MAIN,
    "ablations": ABLATIONS,
    "choices": CHOICES,
    "paper": PAPER_ABLATIONS,
}
OTHER_DRIVES = ("ablations", "choices", "paper")
"""Tables judged on a drive that was not trained on."""
MAIN_SCORES = {
    "softmax": ("msp", "energy", "fused"),
    "softmax_x3": ("energy", "fused"),
    "gmm_default": ("nll", "fused"),
    "one_decoder": ("nll", "fused"),
}
"""What the short tables show: the paper's baseline and the twin's best, and what the default is known by."""
DEMOS = ("demo", "demo_from_scratch")
"""Tables of what `gmmseg demo` has left, without and with ``--from-scratch``; fit: the twin after that."""
PRINTED = {table: list(variants) for table, variants in TABLES.items()} | {
    table: ["gmm", "softmax", "fit"] for table in DEMOS
}


class Experiment:
    """Runs of one table; those of one seed share their cached crops."""

    def __init__(self, table: str, arguments: argparse.Namespace) -> None:
        self.table, self.arguments = table, arguments
        self.camvid: Path = arguments.camvid
        if table in OTHER_DRIVES:
            self._links = tempfile.TemporaryDirectory()
            self.camvid = split_by_drive(arguments.camvid, Path(self._links.name))
        self._crops = tempfile.TemporaryDirectory()
        self._density: CellDensity | None = None

    def overrides(self, variant: str, seed: int) -> list[str]:
        """What defines a run, the places of data and weights apart."""
        hidden = [HELD_OUT] if self.table != "closed" else []
        hidden += [SHORT] if self.table in OTHER_DRIVES else []
        hidden += BEFORE if self.table == "ablations" else []
        return [*COMMON, *hidden, f"train.seed={seed}", *TABLES[self.table][variant]]

    def run(self, variant: str, seed: int) -> None:
        """Train and judge one variant with one seed; leaves results/TABLE/VARIANT_SEED.json."""
        target = RESULTS / self.table / f"{variant}_{seed}.json"
        if target.is_file():
            return
        print(f"{self.table}: {variant}, seed {seed}", flush=True)
        overrides = self.overrides(variant, seed)
        places = [f"data.root={self.camvid}", f"model.weights={self.arguments.weights}"]
        config = load_config("camvid", places + overrides)
        model = self.trained(config, variant, seed)
        if self.table not in ("ablations", "paper") or variant in WITH_DENSITY:
            model.density = self.density(model, config.data)
            model.calibration = calibrate(Predictor(model), self.calibration_set(config.data))
        results = run.evaluate(
            model,
            variant,
            self.sets(config.data),
            run.Judging(inference=InferenceSettings(short_side=360)),
            seeds={"train": seed},
        )
        results["overrides"] = overrides
        results["config"] = dump_config(load_config("camvid", overrides))  # the places left out
        results["link_temperature"] = _link_temperature(model)
        results["posterior_temperature"] = model.temperature
        if self.table in OTHER_DRIVES:
            results["judged_on"] = f"drive {OTHER_DRIVE} of CamVid train, which was not trained on"
        write_results(_without_curves(results), target)

    def density(self, model: Segmenter, settings: DataSettings) -> CellDensity | None:
        """That of the frozen backbone's maps, the same in all runs of a table.

        It is put beside every head, to be fair; `gmmseg train` does it for the default alone.
        """
        if self._density is None:
            self._density = run.fit_density(model, run.training_data(settings))[0].density
        return self._density

    def trained(self, config: Config, variant: str, seed: int) -> Segmenter:
        """The model of a run: the one kept in --models, or one trained now, and kept there if there is."""
        kept = self.arguments.models and self.arguments.models / f"{self.table}_{variant}_{seed}"
        if kept and (kept / "done").is_file():
            return run.open_model(kept)
        with cached.pure_cells() if variant == "pure_cells" else nullcontext():
            model, crops = cached.train(config, Path(self._crops.name))
        if variant in POST_HOC:
            model = cached.post_hoc(model, crops, dim=POST_HOC[variant])
        if kept:
            model.save_pretrained(kept)
            (kept / "done").touch()
        return model

    def calibration_set(self, settings: DataSettings) -> Any:
        """The known classes of CamVid val, which no run of any table is trained on."""
        return run.validation_data(replace(settings, root=str(self.arguments.camvid)))

    def sets(self, settings: DataSettings) -> list[Any]:
        """What the runs of this table are judged on."""
        if self.table == "closed":
            road_anomaly = open_dataset("road_anomaly", self.arguments.road_anomaly)
            return [open_dataset("camvid", self.camvid, "test"), road_anomaly]
        if self.table in OTHER_DRIVES:
            return [run.validation_data(settings), run.hidden_data(settings, "val")]
        test = replace(settings, validation_split="test")
        return [run.validation_data(test), run.hidden_data(settings, "test")]


def split_by_drive(camvid: Path, folder: Path) -> Path:
    """CamVid's training images in ``folder``, as links: all of OTHER_DRIVE are val, the others train.

    ``camvid`` in the layout images/SPLIT, labels/SPLIT.
    """
    for kind in ("images", "labels"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True)
        for file in sorted((camvid / kind / "train").iterdir()):
            split = "val" if file.name.startswith(OTHER_DRIVE) else "train"
            (folder / kind / split / file.name).symlink_to(file.resolve())
    return folder


def _link_temperature(model: Segmenter) -> float | None:
    """Where the temperature of an affine link has come to."""
    logarithm = getattr(getattr(model.head, "link", None), "log_temperature", None)
    return None if logarithm is None else float(logarithm.exp())


def _without_curves(results: dict[str, Any]) -> dict[str, Any]:
    """The results without what only this machine needs: the points of curves, where the data lie."""
    for entry in results["sets"].values():
        entry["asked"].pop("root")  # where the data lie says nothing about the result
        for score in entry.get("scores", {}).values():
            del score["curve"]
    return results


def print_table(table: str, short: bool = False) -> None:
    """Mean and standard deviation over seeds, for every variant and score there are files of.

    ``short``: those of MAIN_SCORES alone.
    A run without a chosen temperature has its one calibration error under "as trained".
    """
    errors = {"ece_as_trained": "ECE as trained"} | ({"ece": "ECE"} if table in ("closed", *DEMOS) else {})
    heads = ["variant: score", "seeds", "mIoU", *errors.values(), "AUROC", "AP", "FPR95"]
    print_rows(heads, _rows(table, errors, short))


def _rows(table: str, errors: Iterable[str], short: bool) -> Iterator[list[str]]:
    for variant in PRINTED[table]:
        files = sorted((RESULTS / table).glob(f"{variant}_[0-9].json"))
        found = [json.loads(file.read_text())["sets"].values() for file in files]
        if not found:
            continue
        closed = [next(e["metrics"] for e in each if e["task"] == "closed_set") for each in found]
        for each in closed:
            if "ece_as_trained" not in each:
                each["ece_as_trained"] = each.pop("ece")
        strange = [next(e["scores"] for e in each if e["task"] == "anomaly") for each in found]
        shown = MAIN_SCORES.get(variant, ()) if short else tuple(strange[0])
        for score in (each for each in shown if all(each in other for other in strange)):
            cells = [percent([each[key] for each in closed if key in each]) for key in ("miou", *errors)]
            cells += [percent([each[score][key] for each in strange]) for key in MEASURES]
            yield [f"{variant}: {score}", str(len(found)), *cells]


def draw_calibration(path: Path) -> None:
    """Reliability of the twin and of the default on CamVid test, seed 0, as an SVG file."""
    tables = {}
    for variant in ("softmax", "gmm_default"):
        entries = load_results(RESULTS / "closed" / f"{variant}_0.json")["sets"].values()
        tables[variant] = next(entry["reliability"] for entry in entries if "reliability" in entry)
    write_bytes(path, plots.reliability_diagram(tables).data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*TABLES, "table", "calibration"])
    parser.add_argument("which", nargs="?", choices=list(PRINTED), help="with table: which one")
    parser.add_argument("--short", action="store_true", help="with table: the main rows alone")
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--road-anomaly", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", help="only these")
    parser.add_argument("--share", default="1/1", help="which part of the runs, as 1/2 and 2/2")
    parser.add_argument("--models", type=Path, help="folder that trained models are kept in and taken from")
    parser.add_argument("--threads", type=int, help="torch threads of this process")
    arguments = parser.parse_args()
    if arguments.what == "table":
        print_table(arguments.which or "closed", arguments.short)
        return
    if arguments.what == "calibration":
        draw_calibration(Path("docs/figures/calibration.svg"))
        return
    if arguments.camvid is None or arguments.weights is None:
        parser.error("--camvid and --weights are needed to train")
    if arguments.what == "closed" and arguments.road_anomaly is None:
        parser.error("--road-anomaly is needed: the table is judged on it")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    experiment = Experiment(arguments.what, arguments)
    variants = arguments.variants or TABLES[arguments.what]
    runs = [(variant, seed) for seed in arguments.seeds for variant in variants]
    part, parts = (int(each) for each in arguments.share.split("/"))
    for variant, seed in runs[part - 1 :: parts]:
        experiment.run(variant, seed)
    print_table(arguments.what)


if __name__ == "__main__":
    main()
