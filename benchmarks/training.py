"""A training step of a generative segmenter against its softmax twin, taking turns in one run.

    python benchmarks/training.py           prints the table, writes benchmarks/results/training.json

Crops are the paper's scaled to a CPU. A step is forward, losses, backward, optimizer, and
EM where there are mixtures.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

import gmmseg
from gmmseg.mixture import OnlineEM
from gmmseg.training.optim import make_optimizer
from gmmseg.training.train_settings import TrainSettings

RESULTS = Path(__file__).parent / "results" / "training.json"
NETWORKS = {"segformer_mit_b0": (2, 256), "deeplabv3plus_resnet101": (2, 128)}
CLASSES = (19, 150)
SETTINGS = TrainSettings()
LEAST_ROUNDS = 15


class Step:
    """One model with its optimizers; calling it makes one training step and returns the seconds of its EM."""

    def __init__(self, network: str, num_classes: int, head: str, batch: int, side: int) -> None:
        torch.manual_seed(0)
        self.segmenter = gmmseg.build(network, num_classes=num_classes, head=head).train()
        self.optimizer = make_optimizer(self.segmenter, SETTINGS)
        mixture = self.segmenter.mixture
        self.em = OnlineEM(mixture) if mixture is not None else None
        self.images = torch.rand(batch, 3, side, side)
        # Patches of one class, as in photographs, so that EM meets as many classes as it would there.
        patches = torch.randint(0, num_classes, (batch, 6, 6))
        self.labels = patches.repeat_interleave(side // 6 + 1, 1).repeat_interleave(side // 6 + 1, 2)[
            :, :side, :side
        ]

    def __call__(self) -> float:
        output = self.segmenter(self.images)
        losses = self.segmenter.losses(output, self.labels, SETTINGS.extra_terms)
        loss = sum(SETTINGS.weight(name) * value for name, value in losses.items())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.em is None:
            return 0.0
        started = time.perf_counter()
        self.em.step(*self.segmenter.em_points(output, self.labels))
        return time.perf_counter() - started


def measure(network: str, num_classes: int, seconds: float) -> dict:
    """Median seconds of either step and share of EM; the ratio is the median of the rounds' ratios.

    Within a round the two steps follow each other, so that a machine that slows down slows both.
    """
    batch, side = NETWORKS[network]
    steps = {head: Step(network, num_classes, head, batch, side) for head in ("default", "softmax")}
    taken: dict[str, list[float]] = {head: [] for head in steps}
    em: list[float] = []
    began = time.perf_counter()
    while len(em) <= LEAST_ROUNDS or time.perf_counter() - began < seconds:
        for head, step in steps.items():
            started = time.perf_counter()
            em_seconds = step()
            taken[head].append(time.perf_counter() - started)
            if head == "default":
                em.append(em_seconds)
    gmm, softmax = (statistics.median(taken[head][1:]) for head in ("default", "softmax"))
    return {
        "batch": batch,
        "crop": side,
        "gmm_seconds": gmm,
        "softmax_seconds": softmax,
        "ratio": statistics.median(a / b for a, b in zip(taken["default"][1:], taken["softmax"][1:])),
        "rounds": len(em) - 1,
        "em_share": statistics.median(em[1:]) / gmm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60, help="time for each network and number of classes"
    )
    seconds = parser.parse_args().seconds
    results = {}
    for network in NETWORKS:
        for num_classes in CLASSES:
            found = results[f"{network}/{num_classes}"] = measure(network, num_classes, seconds)
            print(
                f"{network:<26}{num_classes:>4} classes  {found['softmax_seconds']:.2f} s softmax  "
                f"{found['gmm_seconds']:.2f} s gmm  ratio {found['ratio']:.3f}  "
                f"EM {100 * found['em_share']:.1f} %"
            )
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"command": "python benchmarks/training.py", "machine": machine, **results}, indent=1)
    )


if __name__ == "__main__":
    main()
