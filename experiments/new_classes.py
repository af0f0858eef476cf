"""See it, name it, know it: a class withheld from training, found as unknown, then added from a few images.

    python experiments/new_classes.py streets --models DIR --weights FILE       trains, then judges
    python experiments/new_classes.py camvid --models DIR --camvid DIR --weights FILE
    python experiments/new_classes.py table                                     from the files there are

A model is trained without one class, and its softmax twin too, on cached crops of the same frozen backbone;
both have the density of its maps beside their head, and a calibration. On every second image of the test set:
average precision of the class as unknown. Then the class is added to the GMM model from 1, 5 and 20 training
images with masks (`run.add_class`), and the last layer of the twin is fine-tuned on the same images, with one
row more: once the new row alone, once all rows. Masks are all that `add_class` gets; fine-tuning gets the
labels of all known classes in these images. Both are judged on the same test images. The prior of the new
class, and the shrinkage, are found on val alone. Images are drawn three times.

Trained models are kept in DIR, and a class that has its results file is passed over.
"""

import argparse
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cached
from gmmseg import run
from gmmseg.config import Config, load_config
from gmmseg.data import open_dataset
from gmmseg.data.cached import CachedDataset
from gmmseg.data.held_out import HiddenClasses, RelabelledDataset
from gmmseg.data.subset import EvenlySpaced
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.evaluator import evaluate_anomaly
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter
from gmmseg.models.calibration_file import CALIBRATION_FILE
from gmmseg.models.heads import HeadSettings, SoftmaxHead
from gmmseg.models.segmenter import replace_head
from gmmseg.run.fit import add_densities, labelled_cells
from gmmseg.samples import walk

RESULTS = Path(__file__).parent / "results" / "new_classes"
WITHHELD = {"streets": ("car", "person", "vegetation"), "camvid": ("pedestrian", "bicyclist")}
"""One after the other: each is withheld from a training of its own, for each head and seed."""
HEADS = {"gmm": [], "softmax": ["preset=softmax"]}
SCORES = {"gmm": ("nll", "density", "fused"), "softmax": ("max_logit", "energy", "fused")}
"""The density is one and the same for both. What models show is `fused`."""
COMMON = ["train.validate_every=100000", "train.save_every=100000"]
SCALE = {
    "streets": ["train.decoders=1"],
    "camvid": ["train.decoders=1", "train.cached_crops=2", "train.steps=500"],
}
COUNTS, DRAWS = (1, 5, 20), (0, 1, 2)
LEAST = {"streets": 200, "camvid": 200}
"""Pixels of the class in an image that is drawn."""
STEPS, RATE = 300, 0.01
"""Of fine-tuning: full-batch steps of Adam."""
METHODS = ("gmm_add_class", "softmax_new_row", "softmax_all_rows")


class KeptFeatures(nn.Module):
    """Features that are computed once per image and kept in half precision: nothing here trains them."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.stride, self.out_channels = features.stride, features.out_channels
        self.align_corners = bool(getattr(features, "align_corners", False))
        self.kept: dict[str, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptFeatures":
        return self

    def forward(self, images: Tensor) -> Tensor:
        key = hashlib.blake2b(images.contiguous().numpy().tobytes()).hexdigest()
        if key not in self.kept:
            found = self.features(images)
            self.kept[key] = (found if isinstance(found, Tensor) else found.main).half()
        return self.kept[key].float()


class Experiment:
    """One withheld class and seed: both models, trained or read, and what they are judged on."""

    def __init__(self, kind: str, hidden: str, seed: int, arguments: argparse.Namespace) -> None:
        self.kind, self.hidden, self.seed, self.arguments = kind, hidden, seed, arguments
        self.kept: dict[str, Segmenter] = {}
        self.known: dict[str, float] = {}
        self.splits: dict[str, CachedDataset] = {}

    def run(self) -> None:
        """Judge both models on the withheld class, trained first if they are not there yet."""
        target = RESULTS / f"{self.kind}_{self.hidden}_{self.seed}.json"
        if target.is_file():
            return
        results = {
            "dataset": self.kind,
            "hidden": self.hidden,
            "seed": self.seed,
            "overrides": {head: self.overrides(head) for head in HEADS},
            "test_images": len(self.split("test")),
            "unknown": {head: self.unknown(head) for head in HEADS},
            "runs": [self.added(count, draw) for count in COUNTS for draw in DRAWS],
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(results, indent=1) + "\n")

    def overrides(self, head: str) -> list[str]:
        """What defines a training, the places of data and weights apart."""
        withheld = f"data.held_out=[{self.hidden}]"
        return [withheld, f"train.seed={self.seed}", *COMMON, *SCALE[self.kind], *HEADS[head]]

    def config(self, head: str) -> Config:
        places = [f"model.weights={self.arguments.weights}"]
        if self.kind == "camvid":
            places.append(f"data.root={self.arguments.camvid}")
        return load_config(self.kind, places + self.overrides(head))

    def trained(self, head: str) -> Segmenter:
        """The model kept in --models, or one that is trained now, beside its twin."""
        folders = {
            each: self.arguments.models / f"{self.kind}_{self.hidden}_{each}_{self.seed}" for each in HEADS
        }
        if not all((folder / CALIBRATION_FILE).is_file() for folder in folders.values()):
            self.train(folders)
        return run.open_model(folders[head])

    def train(self, folders: dict[str, Path]) -> None:
        """Both heads on the same crops; the density of the maps of their frozen backbone is one for both."""
        crops = self.arguments.models / "crops" / self.kind / self.hidden / str(self.seed)
        for head, folder in folders.items():
            print(f"training {folder.name}", flush=True)
            cached.train(self.config(head), crops)[0].save_pretrained(folder)
        data = self.config("gmm").data
        add_densities(list(folders.values()), run.training_data(data), "cpu")
        run.calibrate_folders(list(folders.values()), run.validation_data(data))

    def with_kept_features(self, head: str) -> Segmenter:
        """The model without its density, its features kept once computed."""
        if head not in self.kept:
            model = self.trained(head)
            kept = Segmenter(KeptFeatures(model.features), model.head).eval()
            kept.mean, kept.std, kept.inference = model.mean, model.std, model.inference
            kept.label_names, kept.colours = model.label_names, model.colours
            self.kept[head] = kept
        return self.kept[head]

    def split(self, name: str) -> CachedDataset:
        """All classes of a split, of test every second image; images are read or drawn once."""
        if name not in self.splits:
            data = self.config("gmm").data
            whole: Any = open_dataset(data.name, data.root, name)
            self.splits[name] = CachedDataset(
                EvenlySpaced(whole, len(whole) // 2) if name == "test" else whole
            )
        return self.splits[name]

    def unknown(self, head: str) -> dict[str, Any]:
        """AUROC, AP and FPR95 of the withheld class among the known ones, for scores of the head."""
        model = self.trained(head)
        seen = run.matched_classes(self.split("test"), (*model.label_names, self.hidden))
        scores = run.make_scores(model, SCORES[head])
        entry = evaluate_anomaly(
            Predictor(model), HiddenClasses(seen, (self.hidden,)), scores, intervals=False
        )
        names = ("auroc", "ap", "fpr95")
        return {name: {each: score[each] for each in names} for name, score in entry["scores"].items()}

    def before(self, head: str, test: Any) -> float:
        """`old_miou` of a model that has learned nothing new yet."""
        if head not in self.known:
            self.known[head] = old_miou(self.with_kept_features(head), test)
        return self.known[head]

    def added(self, count: int, draw: int) -> dict[str, Any]:
        """Both ways to add the class from ``count`` images, judged on the test set."""
        gmm, twin = (self.with_kept_features(head) for head in HEADS)
        classes = (*gmm.label_names, self.hidden)
        test, val = (run.matched_classes(self.split(name), classes) for name in ("test", "val"))
        images = drawn(self.split("train"), self.hidden, count, draw, LEAST[self.kind])
        added = run.add_class(gmm, self.hidden, masks_of(images, self.hidden), validation=val)
        labelled = run.matched_classes(images, classes)
        entry = {"images": count, "draw": draw, "cells": added.cells, "components": added.components}
        entry["gmm_add_class"] = judged(added.segmenter, self.before("gmm", test), test)
        for method, all_rows in (("softmax_new_row", False), ("softmax_all_rows", True)):
            tuned = fine_tuned(twin, labelled, all_rows=all_rows)
            entry[method] = judged(tuned, self.before("softmax", test), test)
        print(self.kind, self.hidden, self.seed, json.dumps(entry), flush=True)
        return entry


class Some(RelabelledDataset):
    """Some images of a data set."""

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        super().__init__(dataset, torch.arange(IGNORE + 1, dtype=torch.uint8))
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(self.indices[index])

    def labels(self, index: int) -> Tensor:
        return super().labels(self.indices[index])


def drawn(dataset: Any, name: str, count: int, draw: int, least: int) -> Some:
    """``count`` images, drawn at random, with at least so many pixels of a class."""
    label = dataset.label_space.names.index(name)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(draw)).tolist()
    found: list[int] = []
    for index in order:
        if len(found) < count and int((dataset.labels(index) == label).sum()) >= least:
            found.append(index)
    return Some(dataset, found)


def masks_of(dataset: Any, name: str) -> RelabelledDataset:
    """The same images, labelled 1 where the class is, 0 elsewhere."""
    table = torch.zeros(IGNORE + 1, dtype=torch.uint8)
    table[dataset.label_space.names.index(name)], table[IGNORE] = 1, IGNORE
    masks = RelabelledDataset(dataset, table)
    masks.label_space = None
    return masks


@torch.no_grad()
def old_miou(model: Segmenter, dataset: Any) -> float:
    """mIoU of the classes of a model, the withheld one being ignored in ``dataset``."""
    confusion, predictor = ConfusionMatrix(model.num_classes), Predictor(model)
    for sample in walk(dataset):
        labels = sample.labels[None].long()
        known = labels.masked_fill(labels >= model.num_classes, IGNORE)
        confusion.update(predictor.maps(sample).logits.argmax(1), known)
    return float(confusion.compute()["miou"])


@torch.no_grad()
def judged(model: Segmenter, before: float, dataset: Any) -> dict[str, float]:
    """IoU of the new class, mIoU of the old ones on their own pixels before and after, and mIoU of all."""
    confusion, predictor = ConfusionMatrix(model.num_classes), Predictor(model)
    for sample in walk(dataset):
        confusion.update(predictor.maps(sample).logits.argmax(1), sample.labels[None].long())
    found, counts = confusion.compute(), confusion.counts.double()
    hits, old = counts.diagonal()[:-1], counts[:-1]  # on pixels of the old classes alone
    ious = hits / (old.sum(1) + old[:, :-1].sum(0) - hits)
    return {
        "new_iou": float(found["iou"][-1]),
        "old_miou_before": before,
        "old_miou_after": float(ious.nanmean()),
        "miou_all": float(found["miou"]),
    }


def fine_tuned(twin: Segmenter, images: Any, *, all_rows: bool) -> Segmenter:
    """The twin with one more row in its last layer, trained on the labelled cells of these images."""
    assert isinstance(twin.head, SoftmaxHead)
    _, *cells = zip(*labelled_cells(twin, images))
    points, labels = (torch.cat(each) for each in cells)
    old = twin.head.classifier
    weight, bias = old.weight.detach().flatten(1), old.bias.detach()
    old_rows, new_row = torch.cat([weight, bias[:, None]], 1), torch.zeros(1, weight.shape[1] + 1)
    trained = [new_row.requires_grad_(), *([old_rows.requires_grad_()] if all_rows else [])]
    optimizer = torch.optim.Adam(trained, lr=RATE)
    inputs = F.pad(points, (0, 1), value=1.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(inputs @ torch.cat([old_rows, new_row]).T, labels).backward()
        optimizer.step()
    rows = torch.cat([old_rows, new_row]).detach()
    tuned = replace_head(twin, HeadSettings(kind="softmax")).eval()
    head = SoftmaxHead(weight.shape[1], len(rows))
    with torch.no_grad():
        head.classifier.weight.copy_(rows[:, :-1, None, None])
        head.classifier.bias.copy_(rows[:, -1])
    tuned.head = head
    return tuned


def print_table() -> None:
    """Mean and standard deviation over models and draws."""
    files = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    for kind, hidden in dict.fromkeys((each["dataset"], each["hidden"]) for each in files):
        chosen = [each for each in files if (each["dataset"], each["hidden"]) == (kind, hidden)]
        unknown = {
            f"{head} {score}": [each["unknown"][head][score]["ap"] for each in chosen]
            for head, scores in chosen[0]["unknown"].items()
            for score in scores
        }
        print(f"\n{kind}, {hidden} withheld, {len(chosen)} trainings; AP as unknown:", end=" ")
        print(", ".join(f"{name} {spread(values)}" for name, values in unknown.items()))
        print("\n| images | method | IoU of the new class | mIoU of the old, before | lost | mIoU of all |")
        print("|---|---|---|---|---|---|")
        for count in COUNTS:
            runs = [each for file in chosen for each in file["runs"] if each["images"] == count]
            for method in METHODS:
                found = [each[method] for each in runs]
                lost = [each["old_miou_before"] - each["old_miou_after"] for each in found]
                cells = [spread([each["new_iou"] for each in found])]
                cells += [spread([each["old_miou_before"] for each in found]), spread(lost, 2)]
                cells.append(spread([each["miou_all"] for each in found]))
                print(f"| {count} | {method} | {' | '.join(cells)} |")


def spread(values: list[float], digits: int = 1) -> str:
    percent = [100 * value for value in values]
    deviation = f" ± {statistics.stdev(percent):.{digits}f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*WITHHELD, "table"])
    parser.add_argument("--models", type=Path, help="folder of trained models")
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--hidden", nargs="+", help="only these classes")
    parser.add_argument("--threads", type=int, help="torch threads of this process")
    arguments = parser.parse_args()
    if arguments.what == "table":
        print_table()
        return
    if None in (arguments.models, arguments.weights) or (
        arguments.what == "camvid" and arguments.camvid is None
    ):
        parser.error("--models and --weights are needed, and for camvid --camvid")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for seed in arguments.seeds:
        for hidden in arguments.hidden or WITHHELD[arguments.what]:
            Experiment(arguments.what, hidden, seed, arguments).run()
    print_table()


if __name__ == "__main__":
    main()
