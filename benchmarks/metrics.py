"""Pixels per second and peak memory of AnomalyCurve against scikit-learn and torchmetrics.

    python benchmarks/metrics.py [--max-pixels 1000000000] [--max-others 100000000]

Each measurement runs in a process of its own, so that its peak memory is its own. Pixels come in chunks of
four million, 2 % of them anomalous, and are generated outside the clock. scikit-learn and torchmetrics need
all pixels at once; they are given arrays and timed on roc_auc_score, average_precision_score and roc_curve
(for FPR95), or on torchmetrics' counterparts. Figures per CPU second tell what
a shared machine took away. Writes benchmarks/results/metrics.json.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gmmseg  # noqa: F401  repairs torchvision, which torchmetrics imports, where it is broken
from gmmseg.allocator import keep_freed_memory

CHUNK = 4_000_000
RESULTS = Path(__file__).parent / "results" / "metrics.json"


def chunks(pixels: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores (n) float32 like a model's energies, and masks (n) uint8, ``pixels`` of them in all."""
    for start in range(0, pixels, CHUNK):
        rng = np.random.default_rng(start)
        size = min(CHUNK, pixels - start)
        mask = (rng.random(size, dtype=np.float32) < 0.02).astype(np.uint8)
        yield rng.standard_normal(size, dtype=np.float32) * 3 - 10 + 4 * mask, mask


def all_pixels(pixels: int) -> tuple[np.ndarray, np.ndarray]:
    scores, mask = np.empty(pixels, dtype=np.float32), np.empty(pixels, dtype=np.uint8)
    for place, (values, marks) in enumerate(chunks(pixels)):
        part = slice(place * CHUNK, place * CHUNK + len(values))
        scores[part], mask[part] = values, marks
    return scores, mask


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure_gmmseg(pixels: int) -> dict[str, float]:
    from torch import Tensor

    from gmmseg.evaluation import AnomalyCurve

    curve = AnomalyCurve()
    curve.update(*next(chunks(CHUNK)))  # the first touch of the memory is not counted
    curve.reset()
    before = peak_megabytes()
    spent = cpu = 0.0
    for scores, mask in chunks(pixels):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        curve.update(scores, mask)
        spent += time.perf_counter() - begun
        cpu += time.process_time() - begun_cpu
    begun = time.perf_counter()
    figures = curve.compute()
    computing = time.perf_counter() - begun
    tensors = [state for state in curve.metric_state.values() if isinstance(state, Tensor)]
    return {
        "seconds": spent + computing,
        "update_seconds": spent,
        "compute_seconds": computing,
        "update_pixels_per_second": pixels / spent,
        "update_pixels_per_cpu_second": pixels / cpu,
        "state_megabytes": sum(state.nbytes for state in tensors) / 1e6,
        "peak_growth_megabytes": peak_megabytes() - before,
        **figures,
    }


def measure_sklearn(pixels: int) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    scores, mask = all_pixels(pixels)
    begun = time.perf_counter()
    auroc, ap = roc_auc_score(mask, scores), average_precision_score(mask, scores)
    fpr, tpr, _ = roc_curve(mask, scores)
    fpr95 = float(fpr[np.argmax(tpr >= 0.95)])
    return {"seconds": time.perf_counter() - begun, "auroc": auroc, "ap": ap, "fpr95": fpr95}


def measure_torchmetrics(pixels: int) -> dict[str, float]:
    import torch
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    values, marks = all_pixels(pixels)
    scores, mask = torch.from_numpy(values), torch.from_numpy(marks).long()
    begun = time.perf_counter()
    # its exact mode; scores outside [0, 1] go through a sigmoid first, which ties some of them
    auroc, ap = float(binary_auroc(scores, mask)), float(binary_average_precision(scores, mask))
    fpr, tpr, _ = binary_roc(scores, mask)
    fpr95 = float(fpr[(tpr >= 0.95).nonzero()[0]])
    return {"seconds": time.perf_counter() - begun, "auroc": auroc, "ap": ap, "fpr95": fpr95}


MEASURES = {"gmmseg": measure_gmmseg, "scikit-learn": measure_sklearn, "torchmetrics": measure_torchmetrics}


def in_own_process(name: str, pixels: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", name, "--pixels", str(pixels)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"pixels": pixels, "failed": done.returncode}
    return json.loads(done.stdout.strip().split("\n")[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-pixels", type=int, default=1_000_000_000)
    parser.add_argument(
        "--max-others", type=int, default=100_000_000, help="for the two that keep every pixel"
    )
    parser.add_argument("--only", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--pixels", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        keep_freed_memory()  # as commands do
        found = MEASURES[arguments.only](arguments.pixels)
        print(json.dumps({"pixels": arguments.pixels, **found, "peak_megabytes": peak_megabytes()}))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in MEASURES}
    for name, measured in runs.items():
        limit = arguments.max_pixels if name == "gmmseg" else min(arguments.max_pixels, arguments.max_others)
        for size in (10**7, 10**8, 10**9):
            if size <= limit:
                measured.append(in_own_process(name, size))
                print(name, measured[-1], flush=True)
    report = {"cores": os.cpu_count(), "machine": platform.machine(), "chunk": CHUNK, "runs": runs}
    RESULTS.parent.mkdir(exist_ok=True)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=2) + "\n")
    os.replace(temporary, RESULTS)


if __name__ == "__main__":
    main()
