"""Images per second of whole networks: the GMM head against its softmax twin, interleaved in one run.

    python benchmarks/network.py [--size 512] [--seconds 60] [--threads N] [--networks a,b]

Both networks share their features' weights and see the same image; each round runs one after the other, the
order swapped every round, so that whatever else the machine does falls on both alike. The ratio is the
median over rounds of (time of the twin) / (time of the GMM network), by the clock and, as a check that other
work on the machine disturbs less, by processor time. A forward pass ends with logits, and for
the GMM network evidence, at the stride of the features. Writes benchmarks/results/network.json.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

import gmmseg
from gmmseg.allocator import keep_freed_memory
from gmmseg.models.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "network.json"
# network: the least ratio that is asked of it, by number of classes
TARGETS = {"deeplabv3plus_resnet101": {19: 0.99, 150: 0.97}, "segformer_mit_b0": {19: 0.97, 150: 0.95}}


def seconds_of(segmenter: Segmenter, images: torch.Tensor) -> tuple[float, float]:
    """Time on the clock and time of the processor."""
    begun = time.perf_counter(), time.process_time()
    segmenter(images)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def twins(name: str, num_classes: int) -> tuple[Segmenter, Segmenter]:
    """The network with either head, over the same features."""
    generative = gmmseg.build(name, num_classes=num_classes).eval()
    softmax = gmmseg.build(name, num_classes=num_classes, preset="softmax").eval()
    softmax.features = generative.features
    return generative.to(memory_format=torch.channels_last), softmax.to(memory_format=torch.channels_last)


@torch.inference_mode()
def compare(name: str, num_classes: int, size: int, budget: float) -> dict[str, float | int | str | None]:
    generative, softmax = twins(name, num_classes)
    images = torch.rand(1, 3, size, size)
    for segmenter in (generative, softmax):
        seconds_of(segmenter, images)  # the first pass also allocates
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(ours) < 6 or time.perf_counter() - begun < budget:
        order = [(generative, ours), (softmax, theirs)]
        for segmenter, times in order if len(ours) % 2 else reversed(order):
            times.append(seconds_of(segmenter, images))
    return {
        "network": name,
        "classes": num_classes,
        "rounds": len(ours),
        "gmm_images_per_second": 1 / statistics.median(clock for clock, _ in ours),
        "softmax_images_per_second": 1 / statistics.median(clock for clock, _ in theirs),
        "ratio": statistics.median(twin[0] / gmm[0] for gmm, twin in zip(ours, theirs)),
        "cpu_ratio": statistics.median(twin[1] / gmm[1] for gmm, twin in zip(ours, theirs)),
        "target": TARGETS[name][num_classes],
        "size": size,
        "threads": torch.get_num_threads(),
    }


def stored() -> list[dict[str, float | int | str | None]]:
    """The rows of earlier runs."""
    return json.loads(RESULTS.read_text())["results"] if RESULTS.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=512, help="height and width of the image")
    parser.add_argument("--seconds", type=float, default=60.0, help="least time spent on each comparison")
    parser.add_argument("--networks", default=",".join(TARGETS), help="others keep their rows")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads torch may use")
    options = parser.parse_args()
    keep_freed_memory()  # as commands do
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    measured = options.networks.split(",")
    rows = [row for row in stored() if row["network"] not in measured]
    for name in measured:
        for num_classes in TARGETS[name]:
            row = compare(name, num_classes, options.size, options.seconds)
            rows.append(row)
            print(
                f"{name:26} {num_classes:4} classes: GMM {row['gmm_images_per_second']:.3f}, "
                f"softmax {row['softmax_images_per_second']:.3f} images/s, "
                f"ratio {row['ratio']:.3f} (by processor time {row['cpu_ratio']:.3f})",
                flush=True,
            )
    report = {
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "results": rows,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
