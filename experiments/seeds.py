"""Where the spread of seeds comes from: one of three things is drawn anew, the others stay as they are.

    python experiments/seeds.py run --camvid DIR --weights FILE [--parts start order crops all]
    python experiments/seeds.py table              from the files there are

``start``: the weights that decoder and head begin with. ``order``: the order of batches and what EM draws of
them. ``crops``: the crops of the images. One decoder, otherwise as `camvid.py choices`: three classes hidden,
two of CamVid's drives, judged on the third.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from camvid import COMMON, HELD_OUT, ONE, SHORT
from gmmseg import run
from gmmseg.config import Config
from gmmseg.models import Segmenter
from gmmseg.models.density import CellDensity
from other_drive import OtherDrive
from tables import figures, measured, percent, print_rows, write_found

RESULTS = Path(__file__).parent / "results" / "seeds"
PARTS = ("start", "order", "crops", "all")
SCORES = ["nll", "energy", "fused"]


def trained(config: Config, seeds: dict[str, int], folder: Path) -> Segmenter:
    """The network of ``config``, with a seed for each part."""
    accelerator = Accelerator(cpu=True)
    of_crops = replace(config, train=replace(config.train, seed=seeds["crops"]))
    of_order = replace(config, train=replace(config.train, seed=seeds["order"]))
    dataset = run.training_data(config.data)
    crops = run.make_crops(of_crops, folder / str(seeds["crops"]), dataset)
    set_seed(seeds["start"])
    segmenter = run.make_segmenter(config, dataset)
    with tempfile.TemporaryDirectory() as place:
        loader = run.make_loader(of_order, dataset, Path(place), accelerator, crops)
        trainer = run.make_trainer(of_order, segmenter, loader, accelerator, Path(place), crops=crops)
        assert crops is not None
        crops.make(trainer.segmenter)
        return trainer.run().eval()


class Seeds:
    """Runs that share crops of the same seed and the density of the backbone."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.crops, self.drive = folder / "crops", OtherDrive(arguments, folder / "drives")
        self._density: CellDensity | None = None

    def run(self, part: str, seed: int) -> None:
        """Train and judge with one part drawn anew; leaves PART_SEED.json."""
        target = RESULTS / f"{part}_{seed}.json"
        if target.is_file():
            return
        print(f"{part}, seed {seed}", flush=True)
        seeds = {name: seed if part in (name, "all") else 0 for name in PARTS[:3]}
        overrides = [*COMMON, HELD_OUT, SHORT, *ONE]
        config = self.drive.config(overrides)
        found = self.judged(trained(config, seeds, self.crops), config)
        write_found(target, {"seeds": seeds, "overrides": overrides, **found})

    def judged(self, model: Segmenter, config: Config) -> dict[str, Any]:
        """Labels of the known classes and what the scores find of the hidden ones, on the third drive."""
        if self._density is None:
            self._density = run.fit_density(model, run.training_data(config.data))[0].density
        model.density = self._density
        return figures(self.drive.results(model, config.data, SCORES))


def rows() -> Iterator[list[str]]:
    """The cells of the table: what was drawn anew, each score; seed 0 is one run for all parts."""
    for part in PARTS:
        files = {file.stem: file for file in RESULTS.glob("*.json")}
        names = ["all_0", *(f"{part}_{seed}" for seed in range(1, 10))]
        found = [json.loads(files[name].read_text()) for name in names if name in files]
        if len(found) < 2:
            continue
        miou = percent(each["miou"] for each in found)
        for score in SCORES:
            yield [f"{part}: {score}", str(len(found)), miou, *measured(found, score)]


def print_table() -> None:
    """Mean and standard deviation over what was drawn, in percent."""
    print_rows(["drawn anew: score", "draws", "mIoU", "AUROC", "AP", "FPR95"], rows())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    if arguments.what == "run":
        if arguments.camvid is None or arguments.weights is None:
            parser.error("--camvid and --weights are needed to train")
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as place:
            seeds = Seeds(arguments, Path(place))
            for part in arguments.parts:
                for seed in arguments.seeds:
                    if seed or part == "all":
                        seeds.run(part, seed)
    print_table()


if __name__ == "__main__":
    main()
