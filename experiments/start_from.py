"""Starting from a model there is: converted, fitted, adapted, or trained on cached crops.

    python experiments/start_from.py sources                                  any network by name
    python experiments/start_from.py fit --camvid DIR --weights FILE          mixtures without training
    python experiments/start_from.py adapt --camvid DIR --weights FILE        generative in five minutes
    python experiments/start_from.py cached --weights FILE                    cached crops against images
    python experiments/start_from.py table fit         (adapt, cached, sources) from the files there are

Every run leaves a JSON file, and a run that has its file is passed over. `fit` and `adapt` start from softmax
models: trained with three classes of CamVid hidden (`held_out`), with all of them (`closed`), and on the
built-in scenes (`scenes`). `--models FOLDER` keeps these models, or finds them there, as
FOLDER/held_out_softmax_0; one that is not there is trained. They are judged on CamVid test and its hidden
classes, on scenes test and its unknown objects; no setting is chosen on any of these. Five minutes are those
of a processor, with one thread, so that other work on the machine does not count.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cached
import camvid
from gmmseg import run
from gmmseg.config import Config, load_config
from gmmseg.data import open_dataset
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.inference import Predictor, calibrate
from gmmseg.models import Segmenter
from tables import MEASURES, figures, print_rows, spread, write_found

RESULTS = Path(__file__).parent / "results"
HIDDEN = ("car", "pedestrian", "bicyclist")
KINDS = ("held_out", "closed", "scenes")
OWN_SCORES = ["msp", "entropy", "max_logit", "energy", "vim"]
FIT_SCORES = ["density", "fused"]
ADAPT_SCORES = ["nll", "typicality", "energy", "density", "fused"]
MINUTES = 5
CACHED_STEPS = 200
HEADS = {
    "sources": ["source", "trained, saved, loaded, predicted", "largest difference of the twin's logits"],
    "fit": ["model: score", "seeds", "mIoU", "AUROC", "AP", "FPR95"],
    "adapt": ["model: score", "seeds", "mIoU", "AUROC", "AP", "FPR95"],
    "cached": ["training on", "seeds", "loss", "mIoU", "seconds"],
}


class Sets:
    """What a kind of model is trained, validated and judged on."""

    def __init__(self, kind: str, root: Path | None) -> None:
        def labelled(split: str) -> Any:
            dataset = open_dataset("scenes" if kind == "scenes" else "camvid", root, split)
            return WithoutClasses(dataset, HIDDEN) if kind == "held_out" else dataset

        root = None if kind == "scenes" else root
        self.train, self.validation, self.test = (labelled(split) for split in ("train", "val", "test"))
        self.unknown = None
        if kind == "held_out":
            self.unknown = HiddenClasses(open_dataset("camvid", root, "test"), HIDDEN)
        if kind == "scenes":
            self.unknown = open_dataset("scenes_anomaly", None, "test")

    def judged(self) -> list[Any]:
        """The test set, and its unknown things where there are some."""
        return [self.test] if self.unknown is None else [self.test, self.unknown]


def config_of(kind: str, seed: int, arguments: argparse.Namespace) -> Config:
    """How the softmax model of a kind is trained."""
    words = ["preset=softmax", f"train.seed={seed}", "data.workers=0"]
    if kind == "scenes":
        return load_config("scenes", words)
    hidden = [camvid.HELD_OUT] if kind == "held_out" else []
    places = [f"data.root={arguments.camvid}", f"model.weights={arguments.weights}"]
    return load_config("camvid", [*places, *camvid.COMMON, *hidden, *words])


def softmax_model(kind: str, seed: int, arguments: argparse.Namespace) -> Path:
    """The folder of a softmax model, which is trained where it is not there yet."""
    folder = arguments.models / f"{kind}_softmax_{seed}"
    if not (folder / "config.json").is_file():
        config = config_of(kind, seed, arguments)
        with tempfile.TemporaryDirectory() as place:
            if kind == "scenes":
                model = run.open_model(run.train(config, Path(place) / "run", cpu=True))
            else:
                model, _ = cached.train(config, Path(place))
        model.save_pretrained(folder)
    return folder


def judge(model: Segmenter, sets: Sets, scores: list[str]) -> dict[str, Any]:
    """mIoU on the test set, and of each score AUROC, AP and FPR95 on its unknown things."""
    judging = run.Judging(scores if sets.unknown is not None else [])
    needs_training_set = sets.train if sets.unknown is not None and "vim" in scores else None
    return figures(run.evaluate(model, "model", sets.judged(), judging, training_set=needs_training_set))


def fit(kind: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A density beside the head of the softmax model: its own scores and the new ones."""
    sets = Sets(kind, arguments.camvid)
    fitted, _ = run.fit_density(run.open_model(softmax_model(kind, seed, arguments)), sets.train)
    fitted.calibration = calibrate(Predictor(fitted), sets.validation)
    # Labels and logits are those of the softmax model, bit for bit (tests/run/test_fit.py): one look at both.
    found = judge(fitted, sets, [*OWN_SCORES, *FIT_SCORES])
    parts = {"before": OWN_SCORES, "after": FIT_SCORES}
    scores = found["scores"]
    return {
        part: {**found, "scores": {name: scores[name] for name in names if name in scores}}
        for part, names in parts.items()
    }


def adapt(kind: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The softmax model made generative in five minutes."""
    sets = Sets(kind, arguments.camvid)
    source = softmax_model(kind, seed, arguments)
    config = config_of(kind, seed, arguments)
    settings = run.AdaptSettings(data=replace(config.data, workers=0), seed=seed)
    clock = run.Clock(60 * MINUTES, time.process_time)
    with tempfile.TemporaryDirectory() as place:
        found = run.adapt(
            str(source),
            sets.train,
            Path(place) / "out",
            clock,
            settings,
            validation=sets.validation,
            say=print,
        )
    processor_seconds = clock.passed
    return {
        "after": judge(found.model, sets, ADAPT_SCORES),
        "plan": vars(found.plan),
        "processor_seconds": processor_seconds,
        "validation_miou": [found.miou_before, found.miou_after],
    }


def train_cached(kind: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same network trained on cached crops or on images: loss of the last 50 steps, mIoU, seconds."""
    words = [
        "data.name=scenes", "data.crop=[96,160]", "data.keep=true", "data.workers=0", "train.log_every=1",
        f"model.weights={arguments.weights}", f"train.steps={CACHED_STEPS}", f"train.seed={seed}",
        "train.backbone_multiplier=0", f"train.cached_crops={5 if kind == 'crops' else 0}",
        "train.validate_every=100000",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        started = time.process_time()
        run.train(load_config("camvid", words), Path(place) / "run", cpu=True)
        seconds = time.process_time() - started
        lines = (Path(place) / "run" / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    losses = [each["posterior"] for each in entries if each["kind"] == "train"][-50:]
    miou = next(each["miou"] for each in reversed(entries) if each["kind"] == "validation")
    return {"loss": statistics.mean(losses), "miou": miou, "seconds": seconds}


def sources() -> list[dict[str, Any]]:
    """Each kind of source: converted, trained for 20 steps, saved, loaded, predicted; its twin's logits."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
    import test_sources as tiny  # the small networks are those of the tests

    found = []
    for source in tiny.SOURCES:
        with tempfile.TemporaryDirectory() as place:
            works = _works(partial(tiny.test_convert_train_save_load_predict, source, Path(place)))
            difference = tiny.largest_difference(source, Path(place) / "twin")
        found.append({"source": source, "works": works, "difference": difference})
    return found


def _works(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:
        return f"fails: {error}"
    return "works"


RUNS: dict[str, tuple[tuple[str, ...], Callable[[str, int, argparse.Namespace], dict[str, Any]]]] = {
    "fit": (KINDS, fit),
    "adapt": (KINDS, adapt),
    "cached": (("images", "crops"), train_cached),
}


def run_table(table: str, arguments: argparse.Namespace) -> None:
    """All runs of a table that have no file yet."""
    kinds, work = RUNS[table]
    for seed in arguments.seeds:
        for kind in arguments.kinds or kinds:
            target = RESULTS / table / f"{kind}_{seed}.json"
            if not target.is_file():
                print(f"{table}: {kind}, seed {seed}", flush=True)
                write_found(target, {"seed": seed, **work(kind, seed, arguments)})


def rows(table: str) -> Iterator[list[str]]:
    """The cells of a table, from the files there are."""
    if table == "sources":
        for each in json.loads((RESULTS / "sources" / "sources.json").read_text()):
            difference = each["difference"]
            compared = "the network is ours" if difference is None else f"{difference:.1g}"
            yield [each["source"], each["works"], compared]
        return
    for kind in RUNS[table][0]:
        found = [
            json.loads(file.read_text()) for file in sorted((RESULTS / table).glob(f"{kind}_[0-9].json"))
        ]
        if found and table == "cached":
            loss = spread([each["loss"] for each in found], 3)
            miou = spread([100 * each["miou"] for each in found])
            yield [kind, str(len(found)), loss, miou, spread([each["seconds"] for each in found], 0)]
        elif found:
            yield from _judged_rows(table, kind, found)


def _judged_rows(table: str, kind: str, found: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The softmax model's own scores, where the table has them, and those of what was made of it."""
    for part, name in (("before", "softmax"), ("after", table)):
        each = [entry[part] for entry in found if part in entry]
        if not each:
            continue
        miou = spread([100 * one["miou"] for one in each])
        for score in each[0]["scores"] or [""]:
            values = [[100 * one["scores"][score][key] for one in each] for key in MEASURES if score]
            label = f"{kind}, {name}: {score}" if score else f"{kind}, {name}"
            yield [label, str(len(each)), miou, *(map(spread, values) if values else [""] * 3)]


def print_table(table: str) -> None:
    """Mean and standard deviation over seeds."""
    print_rows(HEADS[table], rows(table))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*HEADS, "table"])
    parser.add_argument("which", nargs="?", choices=list(HEADS), help="with table: which one")
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of softmax models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", help="only these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "table":
        print_table(arguments.which or "fit")
        return
    if arguments.what == "sources":
        write_found(RESULTS / "sources" / "sources.json", sources())
    else:
        if arguments.weights is None or (arguments.what != "cached" and arguments.camvid is None):
            parser.error("--weights, and but for cached --camvid, are needed")
        run_table(arguments.what, arguments)
    print_table(arguments.what)


if __name__ == "__main__":
    main()
