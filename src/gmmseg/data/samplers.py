"""Which classes an image holds, and a sampler that draws the class first and then an image that holds it.

The posterior assumes a uniform class prior; sampling this way brings the training data nearer to it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Sampler

from gmmseg.atomic import write_bytes
from gmmseg.labels import IGNORE
from gmmseg.samples import FingerprintedDataset, Progress


def class_counts(
    dataset: FingerprintedDataset, *, cache: Path | None = None, progress: Progress | None = None
) -> np.ndarray:
    """Pixels of each class in each sample (samples c) int64; every label map is read once.

    With ``cache`` the result is kept in that JSON file and read from there while the files stay as they
    are (same names, sizes and times of change).
    """
    if dataset.label_space is None:
        raise ValueError(f"{dataset.name} holds anomaly masks, not classes")
    print_of_files = fingerprint(dataset)
    known = _read_cache(cache, print_of_files) if cache else None
    if known is not None and known.shape == (len(dataset), len(dataset.label_space)):
        return known
    counts = np.zeros((len(dataset), len(dataset.label_space)), np.int64)
    for index in range(len(dataset)):
        labels = dataset.labels(index).reshape(-1)
        counts[index] = torch.bincount(labels, minlength=IGNORE + 1)[: counts.shape[1]].numpy()
        if progress:
            progress(index + 1, len(dataset), dataset.name)
    if cache:
        stored = json.dumps({"fingerprint": print_of_files, "counts": counts.tolist()}).encode()
        write_bytes(cache, stored)
    return counts


def class_shares(
    dataset: FingerprintedDataset, *, cache: Path | None = None, progress: Progress | None = None
) -> np.ndarray:
    """Share of each class among the labelled pixels of the data set (c,) float64, summing to one."""
    counts = class_counts(dataset, cache=cache, progress=progress).sum(0)
    if not counts.any():
        raise ValueError(f"{dataset.name}: no pixel is labelled, so there are no class shares")
    return counts / counts.sum()


def fingerprint(dataset: FingerprintedDataset) -> str:
    """Changes whenever an image or a label file is added, removed or written again."""
    about = f"{dataset.name} {dataset.split} {dataset.label_space}{dataset.content()}"
    return hashlib.sha256(about.encode()).hexdigest()


def _read_cache(path: Path, wanted: str) -> np.ndarray | None:
    """Counts kept for the same files; None when there are none, or the file is broken and has to be made
    again."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return np.array(stored["counts"], np.int64) if stored["fingerprint"] == wanted else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class ClassBalancedSampler(Sampler[int]):
    """Indices of one epoch: a class drawn uniformly among those that occur, then an image that holds it.

    ``counts`` (samples c) are pixels per class. The order depends on (seed, epoch) alone and is global: under
    several processes it is sliced by whoever distributes batches. The n-th repetition of sample i is the
    index ``i + n * samples``, which an AugmentedDataset draws differently.
    """

    def __init__(self, counts: np.ndarray, *, length: int | None = None, seed: int = 0) -> None:
        self.holders = [np.flatnonzero(column) for column in counts.T if column.any()]
        if not self.holders:
            raise ValueError("no image holds a labelled pixel, so there is no class to draw")
        self.samples = len(counts)
        self.length = self.samples if length is None else length
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """To be called before each pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self.seed, self.epoch))
        visits = np.zeros(self.samples, np.int64)
        for which in rng.integers(len(self.holders), size=self.length):
            holders = self.holders[which]
            index = int(holders[rng.integers(len(holders))])
            yield index + int(visits[index]) * self.samples
            visits[index] += 1
