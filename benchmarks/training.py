"""A training step of a generative segmenter against its softmax twin, taking turns in one run.

    python benchmarks/training.py           prints the table, writes benchmarks/results/training.json

Crops are the paper's scaled to a CPU. A step is the trainer's own: forward, losses, backward, optimizer, and
EM where there are mixtures.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator

import gmmseg
from gmmseg import run
from gmmseg.allocator import keep_freed_memory
from gmmseg.config import Config
from gmmseg.samples import Batch
from gmmseg.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "training.json"
NETWORKS = {"segformer_mit_b0": (2, 256), "deeplabv3plus_resnet101": (2, 128)}
CLASSES = (19, 150)
LEAST_ROUNDS = 15


class OneBatch:
    """The same batch again and again: noise with labels in patches."""

    def __init__(self, num_classes: int, batch: int, side: int) -> None:
        # Patches of one class, as in photographs, so that EM meets as many classes as it would there.
        patches = torch.randint(0, num_classes, (batch, 6, 6))
        labels = patches.repeat_interleave(side // 6 + 1, 1).repeat_interleave(side // 6 + 1, 2)
        names = [str(index) for index in range(batch)]
        self.batch = Batch(torch.rand(batch, 3, side, side), labels[:, :side, :side], names)

    def set_epoch(self, epoch: int) -> None:
        """Every epoch is the same."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.batch


def make_trainer(network: str, num_classes: int, head: str, folder: Path) -> Trainer:
    """The trainer of a default run of ``network`` on one batch."""
    torch.manual_seed(0)
    segmenter = gmmseg.build(network, num_classes=num_classes, head=head)
    loader = OneBatch(num_classes, *NETWORKS[network])
    return run.make_trainer(Config(), segmenter, loader, Accelerator(cpu=True), folder)


def measure(network: str, num_classes: int, seconds: float) -> dict:
    """Median seconds of either step and share of EM; the ratio is the median of the rounds' ratios.

    Within a round the two steps follow each other, so that a machine that slows down slows both.
    """
    batch, side = NETWORKS[network]
    with tempfile.TemporaryDirectory() as folder:
        heads = ("default", "softmax")
        trainers = {head: make_trainer(network, num_classes, head, Path(folder)) for head in heads}
    taken: dict[str, list[float]] = {head: [] for head in trainers}
    em: list[float] = []
    began = time.perf_counter()
    while len(em) <= LEAST_ROUNDS or time.perf_counter() - began < seconds:
        for head, trainer in trainers.items():
            report = trainer.train_step([next(iter(trainer.loader))])
            taken[head].append(report.seconds)
            if head == "default":
                em.append(report.em_seconds)
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
    keep_freed_memory()  # as commands do
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
