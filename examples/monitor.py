"""A stream of street scenes that turns foggy: the monitor notices, and says that it is the conditions.

    python examples/monitor.py [--model RUN]

Without a model, a small network is trained on built-in scenes for a short while and calibrated on scenes that
it was not trained on. It then watches 30 more of them, and 60 in fog. Prints the alarm and the strangest
images.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import gmmseg
from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import Scenes
from gmmseg.inference import Monitor, Predictor

NORMAL, FOGGY = 30, 60


def foggy(image: torch.Tensor, share: float = 0.6) -> torch.Tensor:
    """An image (3 h w) uint8 behind grey fog that hides this share of it."""
    return (image * (1 - share) + 205 * share).round().to(torch.uint8)


def trained(steps: int) -> gmmseg.Segmenter:
    """A calibrated model of the scenes' ten classes, after so many training steps."""
    config = load_config("scenes", [f"train.steps={steps}", "train.density=false"])
    with tempfile.TemporaryDirectory() as folder:
        return run.open_model(run.train(config, Path(folder) / "run", cpu=True))


def main(words: Sequence[str] | None = None) -> str | None:
    """Watch a stream and tell what was noticed: the kind of the alarm, None for nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="calibrated run folder or folder of weights for the built-in scenes")
    parser.add_argument("--steps", type=int, default=60, help="training steps without a model")
    arguments = parser.parse_args(words)
    segmenter = run.open_model(arguments.model) if arguments.model else trained(arguments.steps)

    predictor = Predictor(segmenter)
    monitor = Monitor(segmenter.calibration, false_alarms=0.01)
    scenes = Scenes("test", length=NORMAL + FOGGY)
    for index in range(len(scenes)):
        sample = scenes[index]
        image = sample.image if index < NORMAL else foggy(sample.image)
        seen = monitor.update(sample.name, predictor.predict(image).anomaly)
        for alarm in seen.alarms:
            print(f"new {alarm.kind}: image {alarm.index}; the fog came with image {NORMAL}")
            print("strangest:", ", ".join(each.name for each in monitor.strangest()[alarm.kind]))
            return alarm.kind
    print("nothing was noticed")
    return None


if __name__ == "__main__":
    main()
