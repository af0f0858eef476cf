"""What more decoders on one backbone cost: a pass of a model with three against one with one, in one run.

    python benchmarks/decoders.py           prints the table, writes benchmarks/results/decoders.json

`light_efficientnet_lite0` with random weights and mixtures that look fitted, an image of 480x360, one thread;
the two take turns, by processor time. With and without a density of the backbone's maps beside the head.
"""

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path

import torch

from gmmseg.models import Segmenter
from gmmseg.models.companion import companion_of
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.heads import HEAD_PRESETS
from gmmseg.run import fitted_looking

RESULTS = Path(__file__).parent / "results" / "decoders.json"
NETWORK, SIZE, DECODERS = "light_efficientnet_lite0", (360, 480), 3


def seconds(segmenter: Segmenter, images: torch.Tensor) -> float:
    """Processor time of one pass."""
    begun = time.process_time()
    segmenter(images)
    return time.process_time() - begun


@torch.inference_mode()
def compare(num_classes: int, rounds: int, *, density: bool) -> dict[str, float]:
    """Median seconds of either, and the median of the rounds' ratios."""
    one = fitted_looking(NETWORK, num_classes).eval()
    if density:
        one.density = CellDensity(num_classes, DensitySettings(5, _channels(one))).eval()
    several = copy.deepcopy(one)
    for _ in range(DECODERS - 1):
        other = fitted_looking(NETWORK, num_classes).eval()
        several.companions.append(
            companion_of(other.features, other.head, "decoder", HEAD_PRESETS["default"])
        )
    images = torch.rand(1, 3, *SIZE)
    taken = [(seconds(one, images), seconds(several, images)) for _ in range(rounds + 2)][2:]
    return {
        "one": statistics.median(each for each, _ in taken),
        "several": statistics.median(each for _, each in taken),
        "ratio": statistics.median(three / single for single, three in taken),
    }


def _channels(segmenter: Segmenter) -> int:
    """How wide the backbone's joined maps are."""
    maps = segmenter.features.backbone_maps(torch.rand(1, 3, 64, 64))
    return segmenter.features.joined_maps(maps, (64, 64)).shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {}
    for num_classes in (11, 19, 150):
        for density in (False, True):
            name = f"{num_classes} classes" + (", density" if density else "")
            found = results[name] = compare(num_classes, options.rounds, density=density)
            one, several = (f"{1000 * found[key]:.1f} ms" for key in ("one", "several"))
            print(f"{name:<24}{one}, {several} with {DECODERS}, ratio {found['ratio']:.3f}", flush=True)
    about = {
        "command": f"python benchmarks/decoders.py --rounds {options.rounds}",
        "machine": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "network": NETWORK,
        "size": SIZE,
    }
    RESULTS.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
