"""Training on cached crops of a frozen backbone (`train.cached_crops`), and variants no setting asks for."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg import run
from gmmseg.config import Config
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter
from gmmseg.models.heads import HeadSettings
from gmmseg.models.segmenter import replace_head
from gmmseg.training.cached_crops import CachedCrops, OnCachedMaps, collate_crops


def train(config: Config, folder: Path) -> tuple[Segmenter, CachedCrops]:
    """The network of ``config``, trained on the crops kept below ``folder``, and those crops.

    Runs that differ in head, loss or EM alone find the crops of the run before there and use them again.
    """
    set_seed(config.train.seed)
    dataset, accelerator = run.training_data(config.data), Accelerator(cpu=True)
    crops = run.make_crops(config, folder, dataset)
    assert crops is not None, "the experiments train with train.cached_crops"
    segmenter = run.make_segmenter(config, dataset)
    with tempfile.TemporaryDirectory() as run_folder:
        place = Path(run_folder)
        heads = 1 + len(segmenter.learning)
        loader = run.make_loader(config, dataset, place, accelerator, crops, heads)
        trainer = run.make_trainer(config, segmenter, loader, accelerator, place, crops=crops)
        crops.make(trainer.segmenter, say=print)
        return trainer.run().eval(), crops


@torch.no_grad()
def post_hoc(
    trained: Segmenter, crops: CachedCrops, *, dim: int | None = None, passes: int = 10, block: int = 16
) -> Segmenter:
    """Mixtures fitted by EM on the features of a trained softmax network, at one crop of each image.

    ``dim``: on so many principal components of the features; None: on the features as they are.
    """
    channels = trained.features.out_channels
    assert isinstance(channels, int)
    settings = HeadSettings(components=5, dim=channels, projection="none", coordinates="plain", link="bayes")
    fitted = replace_head(trained, settings).eval()
    points, labels = _points(fitted, crops, block)
    if dim is not None:
        fitted = replace_head(trained, replace(settings, dim=dim, projection="linear")).eval()
        points = _project_(fitted, points, dim)
    assert fitted.mixture is not None
    fitted.mixture.fit(points, labels, passes=passes)
    return fitted


def _project_(fitted: Segmenter, points: Tensor, dim: int) -> Tensor:
    """Make the head's projection that to the first principal components; returns the points (n dim) of it."""
    centre = points.mean(0)
    directions = torch.linalg.eigh((points - centre).T @ (points - centre)).eigenvectors[:, -dim:].T
    projection = fitted.head.projection
    assert isinstance(projection, nn.Linear)
    projection.weight.copy_(directions)
    projection.bias.copy_(-directions @ centre)
    return projection(points)


def _points(fitted: Segmenter, crops: CachedCrops, block: int) -> tuple[Tensor, Tensor]:
    """Features (n f) and labels (n) of the cells of one crop of each image."""
    network, points, labels = OnCachedMaps(fitted, crops), [], []
    crops.set_epoch(0)
    for start in range(0, len(crops), block):
        indices = range(start, min(start + block, len(crops)))
        batch = collate_crops([crops[index] for index in indices])
        each = fitted.em_points(network(batch.images), batch.labels)
        points.append(each.points)
        labels.append(each.labels)
    return torch.cat(points), torch.cat(labels)


@contextmanager
def pure_cells() -> Iterator[None]:
    """While it lasts, EM and the likelihood term see only cells all of whose pixels have one label."""
    with mock.patch("gmmseg.models.pairing.shrink_labels", _label_of_pure_cells):
        yield


def _label_of_pure_cells(labels: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Labels (b H W) of the cells of a coarser grid, (b h w); IGNORE where a cell has more than one."""
    pixels = labels[:, None].float()
    largest = F.adaptive_max_pool2d(pixels, tuple(size))
    smallest = -F.adaptive_max_pool2d(-pixels, tuple(size))
    return torch.where(largest == smallest, largest, float(IGNORE))[:, 0].to(labels.dtype)
