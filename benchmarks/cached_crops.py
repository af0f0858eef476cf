"""Training on cached crops against training on images, taking turns in one run.

    python benchmarks/cached_crops.py --camvid DIR --weights FILE
                                            prints the table, writes benchmarks/results/cached_crops.json

The network is `light_efficientnet_lite0` with the settings of the shipped configuration `camvid`; without
--camvid it sees the built-in scenes, without --weights its backbone is random. A step has the loading of its
batch in it (no workers), forward, losses, backward, optimizer and EM. Seconds are those of the processor, so
that a machine at work on other things measures the same. Peak memory is that of one process that
makes the cache and trains on it for two epochs, for 2 crops per image and for 8 (on Linux).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from gmmseg import run
from gmmseg.config import Config, load_config
from gmmseg.data.wrapped import WrappedDataset
from gmmseg.samples import FingerprintedDataset
from gmmseg.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "cached_crops.json"
CROPS = 5


class FirstImages(WrappedDataset):
    """The first images of a data set."""

    def __init__(self, dataset: FingerprintedDataset, count: int) -> None:
        super().__init__(dataset)
        self.count = min(count, len(dataset))

    def __len__(self) -> int:
        return self.count


def make_config(arguments: argparse.Namespace, crops: int) -> Config:
    data = ["data.name=scenes"] if arguments.camvid is None else [f"data.root={arguments.camvid}"]
    weights = f"model.weights={arguments.weights or 'null'}"
    rest = ["data.workers=0", "train.backbone_multiplier=0", f"train.cached_crops={crops}"]
    return load_config("camvid", [*data, weights, *rest, f"train.steps={arguments.steps}"])


class Steps:
    """A trainer that makes one step at a time; ``seconds_to_cache``: what its cache took to make."""

    def __init__(self, arguments: argparse.Namespace, crops: int, folder: Path) -> None:
        config = make_config(arguments, crops)
        set_seed(config.train.seed)
        dataset = FirstImages(run.training_data(config.data), arguments.images)
        cache = run.make_crops(config, folder, dataset)
        accelerator = Accelerator(cpu=True)
        segmenter = run.make_segmenter(config, dataset)
        loader = run.make_loader(config, dataset, folder, accelerator, cache)
        self.trainer: Trainer = run.make_trainer(config, segmenter, loader, accelerator, folder, crops=cache)
        started = time.process_time()
        if cache is not None:
            cache.make(self.trainer.segmenter, say=print)
        self.seconds_to_cache = time.process_time() - started
        self.cached = len(dataset) * crops
        self.bytes = sum(path.stat().st_size for path in folder.rglob("*.bin"))

    def seconds(self) -> Iterator[float]:
        """What each step takes, one after the other."""
        batches = self.trainer._batches()
        while True:
            started = time.process_time()
            self.trainer.train_step([next(batches)])
            yield time.process_time() - started


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step on images and on crops; the ratio is the median of the rounds' ratios."""
    with tempfile.TemporaryDirectory() as folder:
        either = {kind: Steps(arguments, crops, Path(folder) / kind) for kind, crops in
                  (("images", 0), ("crops", CROPS))}  # fmt: skip
        steps = {kind: each.seconds() for kind, each in either.items()}
        rounds = [{kind: next(each) for kind, each in steps.items()} for _ in range(arguments.rounds + 1)][1:]
        made = either["crops"]
    return {
        "images": made.cached // CROPS,
        "crops_per_image": CROPS,
        "step_on_images_seconds": statistics.median(each["images"] for each in rounds),
        "step_on_crops_seconds": statistics.median(each["crops"] for each in rounds),
        "speed_up": statistics.median(each["images"] / each["crops"] for each in rounds),
        "rounds": len(rounds),
        "cache_seconds": made.seconds_to_cache,
        "cache_seconds_per_crop": made.seconds_to_cache / made.cached,
        "cache_bytes": made.bytes,
    }


def peak_memory(arguments: argparse.Namespace, crops: int) -> int:
    """Peak resident bytes of a process that makes ``crops`` per image and trains on them."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only-train", str(crops)]
    # Freed blocks go back at once: what glibc keeps of them differs by tens of MB from run to run.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return int(done.stdout.split()[-1])


def train_only(arguments: argparse.Namespace) -> None:
    """Make the crops, train on them for two epochs, print the peak of memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        made = Steps(arguments, arguments.only_train, Path(folder))
        steps = made.seconds()
        for _ in range(2 * len(made.trainer.loader)):  # type: ignore[arg-type]
            next(steps)
    # Not getrusage: a child process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--camvid", type=Path, help="CamVid; without it the built-in scenes")
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 weights (.safetensors)")
    parser.add_argument("--images", type=int, default=100, help="training images at most")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--only-train", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(steps=1000)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.only_train:
        return train_only(arguments)
    found = measure(arguments)
    found["peak_memory_bytes"] = {str(crops): peak_memory(arguments, crops) for crops in (2, 8)}
    print(
        f"{found['step_on_images_seconds']:.3f} s a step on images, "
        f"{found['step_on_crops_seconds']:.3f} s on crops: {found['speed_up']:.1f} times as fast; "
        f"{found['cache_seconds']:.0f} s to make the cache, "
        f"{found['cache_bytes'] / 1e6:.0f} MB; peak memory "
        + ", ".join(f"{peak / 1e6:.0f} MB for {n} crops" for n, peak in found["peak_memory_bytes"].items())
    )
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    data = {"data": "scenes" if arguments.camvid is None else "camvid", "weights": bool(arguments.weights)}
    given = [
        f"--{name} {place or getattr(arguments, name)}"
        for name, place in {
            "camvid": "DIR",
            "weights": "FILE",
            "images": "",
            "rounds": "",
            "threads": "",
        }.items()
        if getattr(arguments, name) != parser.get_default(name)
    ]
    command = " ".join(["python benchmarks/cached_crops.py", *given])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"command": command, "machine": machine, **data, **found}, indent=1))
    return None


if __name__ == "__main__":
    main()
