"""What eight bits cost: mIoU on known classes and AP of the anomaly score, beside single precision.

    python benchmarks/int8.py MODEL [--images 60]

MODEL: a run folder or folder of weights trained on the built-in scenes (`gmmseg train scenes`, seed 0).
Ranges are found on the validation scenes, figures on test scenes and on scenes with unknown objects. Writes
benchmarks/results/int8.json.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import torch

from gmmseg import open_dataset, run
from gmmseg.evaluation import AnomalyCurve
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.images import to_unit_range
from gmmseg.inference import ExportedPredictor, open_exported

RESULTS = Path(__file__).parent / "results" / "int8.json"


def judge(path: Path, images: int) -> dict[str, float]:
    """mIoU, AP, megabytes and processor seconds per image of an exported file."""
    predictor = ExportedPredictor(open_exported(path, threads=1))
    confusion, curve = ConfusionMatrix(len(predictor.metadata.classes)), AnomalyCurve()
    seconds = 0.0
    for name in ("scenes", "scenes_anomaly"):
        dataset = open_dataset(name, None, "test")
        for index in range(min(images, len(dataset))):
            sample = dataset[index]
            begun = time.process_time()
            found = predictor.predict(to_unit_range(sample.image))
            seconds += time.process_time() - begun
            if name == "scenes":
                confusion.update(found.labels[None].long(), sample.labels[None].long())
            else:
                curve.update(found.anomaly, sample.labels)
    return {
        "miou": float(confusion.compute()["miou"]),
        "ap": curve.compute()["ap"],
        "megabytes": path.stat().st_size / 1e6,
        "processor_seconds_per_image": seconds / (2 * images),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=int, default=60, help="of either set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        files = {"float32": Path(scratch) / "float32.onnx", "int8": Path(scratch) / "int8.onnx"}
        run.export_model(options.model, files["float32"])
        run.export_int8(options.model, open_dataset("scenes", None, "val"), files["int8"])
        rows = {name: judge(path, options.images) for name, path in files.items()}
    for name, row in rows.items():
        print(name, ", ".join(f"{key} {value:.4f}" for key, value in row.items()))
    about = {
        "command": "python benchmarks/int8.py MODEL",
        "model": options.model.name,
        "images": options.images,
    }
    machine = f"{platform.machine()}, two shared cores, no GPU; one thread, processor time"
    RESULTS.write_text(json.dumps({**about, "machine": machine, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
