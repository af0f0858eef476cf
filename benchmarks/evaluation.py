"""Time of `evaluate` on an anomaly set against the bare forward passes, in one run.

    python benchmarks/evaluation.py [--images 100] [--height 1024] [--width 2048] [--network segformer_mit_b0]

Four scores with confidence intervals. Images are read from memory and made of noise, masks hold a few
objects and ignored pixels. Rounds alternate between the two, bare passes first and last, so that whatever
else the machine does falls on both alike. Writes benchmarks/results/evaluation.json.
"""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import gmmseg
from against_bare_passes import noise, options_parser, parsed, write_report
from gmmseg.evaluation.evaluator import evaluate_anomaly
from gmmseg.images import to_unit_range
from gmmseg.inference import Predictor
from gmmseg.inference.windows import forward
from gmmseg.labels import IGNORE
from gmmseg.run import make_scores
from gmmseg.samples import Sample

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
SCORES = ("nll", "nll_logsumexp", "msp", "entropy")
TARGET = 1.3


class Noise:
    """``length`` images of noise with masks; the first few are kept and come again and again."""

    name, split, root, label_space = "noise", "test", None, None

    def __init__(self, length: int, size: tuple[int, int]) -> None:
        self.length, self.size = length, size
        self.kept = [self._drawn(index) for index in range(min(4, length))]

    def _drawn(self, index: int) -> Sample:
        image = noise(index, self.size, 16)
        mask = torch.zeros(self.size, dtype=torch.uint8)
        height, width = self.size
        mask[height // 2 : height // 2 + height // 8, width // 4 : width // 4 + width // 16] = 1
        mask[-height // 10 :] = IGNORE
        return Sample((255 * image).to(torch.uint8), mask, f"{index}")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return self.kept[index % len(self.kept)]

    def labels(self, index: int) -> torch.Tensor:
        return self[index].labels


def bare_passes(predictor: Predictor, dataset: Noise) -> None:
    for index in range(len(dataset)):
        forward(predictor.segmenter, to_unit_range(dataset[index].image)[None])


def evaluated(predictor: Predictor, dataset: Noise) -> None:
    evaluate_anomaly(predictor, dataset, make_scores(predictor.segmenter, SCORES))


def seconds(work: Any, *arguments: Any) -> tuple[float, float]:
    """Time on the clock and time of the processor."""
    begun = time.perf_counter(), time.process_time()
    work(*arguments)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def main() -> None:
    parser = options_parser(__doc__)
    size = {"height": 1024, "width": 2048}
    parser.set_defaults(images=100, **size, network="segformer_mit_b0", rounds=3, threads=os.cpu_count())
    options = parsed(parser)
    predictor = Predictor(gmmseg.build(options.network, num_classes=19).eval())
    dataset = Noise(options.images, (options.height, options.width))
    bare_passes(predictor, Noise(1, dataset.size))  # the first pass also allocates
    bare = [seconds(bare_passes, predictor, dataset)]
    whole = []
    for _ in range(options.rounds):
        whole.append(seconds(evaluated, predictor, dataset))
        bare.append(seconds(bare_passes, predictor, dataset))
    ratios = [  # against the mean of the bare passes before and after
        [2 * whole[i][kind] / (bare[i][kind] + bare[i + 1][kind]) for i in range(options.rounds)]
        for kind in (0, 1)
    ]
    found = {
        "scores": SCORES,
        "bare_seconds": statistics.median(clock for clock, _ in bare),
        "evaluate_seconds": statistics.median(clock for clock, _ in whole),
        "ratio": statistics.median(ratios[0]),
        "cpu_ratio": statistics.median(ratios[1]),
        "target": TARGET,
    }
    write_report(RESULTS, options, found)


if __name__ == "__main__":
    main()
