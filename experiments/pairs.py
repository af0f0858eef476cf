"""Two decoders on one frozen backbone: a generative model with a softmax model beside it, and two of softmax.

    python experiments/pairs.py run --camvid DIR --weights FILE --models FOLDER [--seeds 0 1]
    python experiments/pairs.py table          from the files there are

``FOLDER`` holds the models that `camvid.py choices --models FOLDER` has trained, three classes hidden; they
are judged on the drive that was not trained on. The second decoder is that of the softmax model of the same
seed, or, beside a softmax model, of the next one; posteriors are averaged (`gmmseg.models.companion`).
All have the same density of the backbone's maps and are calibrated on CamVid val.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from camvid import CHOICES, COMMON, HELD_OUT
from gmmseg import run
from gmmseg.models.companion import companion_of
from gmmseg.models.density import CellDensity
from other_drive import OtherDrive
from tables import figures, measured, percent, print_rows, write_found

RESULTS = Path(__file__).parent / "results" / "pairs"
FIRST = ("softmax", "one_decoder", "likelihood_1_slow_link")
SCORES = ["energy", "density", "fused"]


class Pairs:
    """Pairs of kept models, all with one density: that of the backbone they share."""

    def __init__(self, arguments: argparse.Namespace, drive: OtherDrive) -> None:
        self.arguments, self.drive = arguments, drive
        self._density: CellDensity | None = None

    def run(self, variant: str, seed: int) -> None:
        """Judge a model alone and with a softmax decoder beside it; leaves VARIANT_SEED.json."""
        target = RESULTS / f"{variant}_{seed}.json"
        if target.is_file():
            return
        print(f"{variant}, seed {seed}", flush=True)
        beside = seed if variant != "softmax" else (seed + 1) % (max(self.arguments.seeds) + 1)
        found = {
            "seed": seed,
            "companion": f"softmax, seed {beside}",
            "overrides": [*COMMON, HELD_OUT, *CHOICES[variant]],
            "alone": self.judged(variant, seed, None),
            "pair": self.judged(variant, seed, beside),
        }
        write_found(target, found)

    def judged(self, variant: str, seed: int, beside: int | None) -> dict[str, Any]:
        """Labels, calibration as trained and what the scores find, of one model or of a pair."""
        data = self.drive.config([*COMMON, HELD_OUT, f"train.seed={seed}"]).data
        model = run.open_model(self.arguments.models / f"choices_{variant}_{seed}")
        if self._density is None:
            self._density = run.fit_density(model, run.training_data(data))[0].density
        model.density = self._density
        if beside is not None:
            softmax = run.open_model(self.arguments.models / f"choices_softmax_{beside}")
            model.companions.append(companion_of(softmax.features, softmax.head, "decoder"))
        results = self.drive.results(model, data, SCORES)
        metrics = next(each["metrics"] for each in results["sets"].values() if "metrics" in each)
        return {**figures(results), "ece_as_trained": metrics.get("ece_as_trained", metrics["ece"])}


def rows() -> Iterator[list[str]]:
    """The cells of the table: each variant, alone and as a pair, each score."""
    for variant in FIRST:
        files = sorted(RESULTS.glob(f"{variant}_[0-9].json"))
        found = [json.loads(file.read_text()) for file in files]
        for kind in ("alone", "pair") if found else ():
            parts = [each[kind] for each in found]
            labels = [percent(each[key] for each in parts) for key in ("miou", "ece_as_trained")]
            for score in SCORES:
                yield [f"{variant}, {kind}: {score}", str(len(found)), *labels, *measured(parts, score)]


def print_table() -> None:
    """Mean and standard deviation over seeds, in percent."""
    print_rows(["variant: score", "seeds", "mIoU", "ECE as trained", "AUROC", "AP", "FPR95"], rows())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--models", type=Path, help="folder of the models of camvid.py choices")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(FIRST), choices=FIRST)
    arguments = parser.parse_args()
    if arguments.what == "run":
        if None in (arguments.camvid, arguments.weights, arguments.models):
            parser.error("--camvid, --weights and --models are needed")
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as place:
            pairs = Pairs(arguments, OtherDrive(arguments, Path(place)))
            for seed in arguments.seeds:
                for variant in arguments.variants:
                    pairs.run(variant, seed)
    print_table()


if __name__ == "__main__":
    main()
