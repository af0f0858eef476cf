"""How much of the network to train: labels against detection, for the default and its softmax twin.

    python experiments/end_to_end.py run --camvid DIR --weights FILE [--seeds 0 1] [--regimes ...]
    python experiments/end_to_end.py table          from the files there are
    python experiments/end_to_end.py figure         docs/figures/end_to_end.svg

EfficientNet-Lite0 under a light decoder, trained on images (nothing is cached) with smaller crops, smaller
batches and fewer steps than in camvid.py. Two drives of CamVid train to train on, the third to judge on, as
in the ablations: no image of CamVid test takes part. `hidden`: three classes hidden from training, and to be
found; `closed`: all classes, labels alone. What a regime says: nothing of the backbone is trained, its last
block alone, or all of it at a share of the decoder's learning rate.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from camvid import HELD_OUT, MAIN
from gmmseg import run
from gmmseg.config import Config
from gmmseg.models import InferenceSettings, Segmenter
from other_drive import OtherDrive
from tables import figures, measured, percent, print_rows, write_found

RESULTS = Path(__file__).parent / "results" / "end_to_end"
FIGURE = Path("docs/figures/end_to_end.svg")
HEADS = {"gmm_default": MAIN["gmm_default"], "softmax": MAIN["softmax"]}
REGIMES = {"frozen": 0.0, "last_block": 0.1, "rate_0.01": 0.01, "rate_0.1": 0.1, "rate_1": 1.0}
"""Regime -> learning rate of what is trained of the backbone, relative to the decoder's."""
KINDS = {"hidden": [HELD_OUT], "closed": []}
COMMON = [
    "model.name=timm:tf_efficientnet_lite0", "train.steps=250", "train.batch_size=6", "data.crop=[192,256]",
    "train.validate_every=100000", "train.save_every=100000", "data.workers=0", "train.decoders=1",
]  # fmt: skip
SCORES = {"gmm_default": ["nll", "density", "fused"], "softmax": ["msp", "energy", "density", "fused"]}
SHOWN = {"gmm_default": ("fused",), "softmax": ("energy", "fused")}
"""What the figure shows of each head."""


def hold_all_but_last_block(segmenter: Segmenter) -> None:
    """Only the last block of the backbone is trained; the others also keep their batch norm's statistics."""
    network = next(each for each in segmenter.backbone.modules() if hasattr(each, "blocks"))
    blocks = network.blocks
    assert isinstance(blocks, nn.Sequential)
    trained = {id(each) for each in blocks[-1].modules()}
    for module in segmenter.backbone.modules():
        if id(module) in trained:
            continue
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.train = lambda mode=True, own=module: own  # type: ignore[method-assign]


def trained(config: Config, regime: str) -> Segmenter:
    """The network of ``config`` trained in a regime."""
    set_seed(config.train.seed)
    dataset, accelerator = run.training_data(config.data), Accelerator(cpu=True)
    segmenter = run.make_segmenter(config, dataset)
    if regime == "last_block":
        hold_all_but_last_block(segmenter)
    with tempfile.TemporaryDirectory() as place:
        loader = run.make_loader(config, dataset, Path(place), accelerator)
        return run.make_trainer(config, segmenter, loader, accelerator, Path(place)).run().eval()


def run_one(kind: str, head: str, regime: str, seed: int, drive: OtherDrive) -> None:
    """Train and judge one head in one regime; leaves KIND_HEAD_REGIME_SEED.json."""
    target = RESULTS / f"{kind}_{head}_{regime}_{seed}.json"
    if target.is_file():
        return
    print(f"{kind}, {head}, {regime}, seed {seed}", flush=True)
    overrides = [
        *COMMON, *KINDS[kind], f"train.seed={seed}", f"train.backbone_multiplier={REGIMES[regime]}",
        *HEADS[head],
    ]  # fmt: skip
    config = drive.config(overrides)
    found = judged(trained(config, regime), config, drive, SCORES[head] if KINDS[kind] else [])
    found |= {"kind": kind, "head": head, "regime": regime, "seed": seed, "overrides": overrides}
    write_found(target, found)


def judged(model: Segmenter, config: Config, drive: OtherDrive, scores: list[str]) -> dict[str, Any]:
    """mIoU on the drive that was not trained on; with ``scores``, what each finds of the hidden classes."""
    if not scores:
        view = run.Judging([], inference=InferenceSettings(short_side=360))
        return figures(run.evaluate(model, "model", [run.validation_data(config.data)], view))
    # A density beside either head, to be fair.
    model, _ = run.fit_density(model, run.training_data(config.data))
    return figures(drive.results(model, config.data, scores))


def files(kind: str, head: str, regime: str) -> list[dict[str, Any]]:
    """What was found with every seed there is a file of."""
    found = sorted(RESULTS.glob(f"{kind}_{head}_{regime}_[0-9].json"))
    return [json.loads(file.read_text()) for file in found]


def rows() -> Iterator[list[str]]:
    """The cells of the table: each head in each regime, each score."""
    for head in HEADS:
        for regime in REGIMES:
            found, closed = files("hidden", head, regime), files("closed", head, regime)
            labels = [percent(each["miou"] for each in part) for part in (closed, found)]
            for score in found[0]["scores"] if found else ():
                yield [f"{head}, {regime}: {score}", str(len(found)), *labels, *measured(found, score)]


def print_table() -> None:
    """Mean and standard deviation over seeds, in percent."""
    names = ["head, regime: score", "seeds", "mIoU, all classes", "mIoU, three hidden"]
    print_rows([*names, "AUROC", "AP", "FPR95"], rows())


def draw(path: Path) -> None:
    """Labels (mIoU of the known classes) against detection (AP of the hidden ones), means over seeds."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for head, scores in SHOWN.items():
        for score in scores:
            means = [_means(files("hidden", head, regime), score) for regime in REGIMES]
            axes.plot(*zip(*means), marker="o", label=f"{head}: {score}")
            for regime, mean in zip(REGIMES, means):
                axes.annotate(regime, mean, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("mIoU of the known classes (%)")
    axes.set_ylabel("AP of the hidden classes (%)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _means(found: list[dict[str, Any]], score: str) -> tuple[float, float]:
    labels = statistics.mean(each["miou"] for each in found)
    return 100 * labels, 100 * statistics.mean(each["scores"][score]["ap"] for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table", "figure"])
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    arguments = parser.parse_args()
    if arguments.what == "figure":
        return draw(FIGURE)
    if arguments.what == "run":
        if arguments.camvid is None or arguments.weights is None:
            parser.error("--camvid and --weights are needed to train")
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as place:
            drive = OtherDrive(arguments, Path(place))
            for kind in arguments.kinds:
                for seed in arguments.seeds:
                    for regime in arguments.regimes:
                        for head in HEADS:
                            run_one(kind, head, regime, seed, drive)
    return print_table()


if __name__ == "__main__":
    main()
