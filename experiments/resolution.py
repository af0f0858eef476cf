"""At which size to look: labels and hidden classes at four shorter sides, for the default and its twin.

    python experiments/resolution.py run --camvid DIR --weights FILE --models FOLDER [--seeds 0 1]
    python experiments/resolution.py table         from the files there are

``FOLDER`` holds the models that `camvid.py choices --models FOLDER` has trained, on crops of images at a
scale of 0.5 to 2. They are judged on the drive that was not trained on. At each side the model is calibrated
anew on CamVid val; the density beside the head is that of the images as they are, 360 pixels.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from camvid import CHOICES, COMMON, HELD_OUT
from gmmseg import run
from other_drive import OtherDrive
from tables import figures, measured, percent, print_rows, write_found

RESULTS = Path(__file__).parent / "results" / "resolution"
SIDES = (240, 360, 540, 720)
SCORES = {"softmax": ["energy", "density", "fused"], "gmm_default": ["nll", "density", "fused"]}


def run_one(variant: str, seed: int, models: Path, drive: OtherDrive) -> None:
    """Judge one model at every side; leaves VARIANT_SEED.json."""
    target = RESULTS / f"{variant}_{seed}.json"
    if target.is_file():
        return
    data = drive.config([*COMMON, HELD_OUT, f"train.seed={seed}", *CHOICES[variant]]).data
    model = run.open_model(models / f"choices_{variant}_{seed}")
    model, _ = run.fit_density(model, run.training_data(data))
    found = {}
    for side in SIDES:
        print(f"{variant}, seed {seed}: shorter side {side}", flush=True)
        found[str(side)] = figures(drive.results(model, data, SCORES[variant], short_side=side))
    write_found(target, {"seed": seed, "sides": found})


def rows() -> Iterator[list[str]]:
    """The cells of the table: each head at each side, each score."""
    for variant, scores in SCORES.items():
        found = [
            json.loads(file.read_text())["sides"] for file in sorted(RESULTS.glob(f"{variant}_[0-9].json"))
        ]
        for side in map(str, SIDES if found else ()):
            for score in scores:
                at_side = [each[side] for each in found]
                miou = percent(each["miou"] for each in at_side)
                yield [f"{variant}, {side}: {score}", str(len(found)), miou, *measured(at_side, score)]


def print_table() -> None:
    """Mean and standard deviation over seeds, in percent."""
    print_rows(["variant, shorter side: score", "seeds", "mIoU", "AUROC", "AP", "FPR95"], rows())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--models", type=Path, help="folder of the models of camvid.py choices")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    if arguments.what == "run":
        if arguments.camvid is None or arguments.weights is None or arguments.models is None:
            parser.error("--camvid, --weights and --models are needed")
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as place:
            drive = OtherDrive(arguments, Path(place))
            for seed in arguments.seeds:
                for variant in SCORES:
                    run_one(variant, seed, arguments.models, drive)
    print_table()


if __name__ == "__main__":
    main()
