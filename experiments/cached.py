"""Training on cached crops of a frozen backbone (`train.cached_crops`), and mixtures fitted afterwards."""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from gmmseg import run
from gmmseg.config import Config
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
        loader = run.make_loader(config, dataset, place, accelerator, crops)
        trainer = run.make_trainer(config, segmenter, loader, accelerator, place, crops=crops)
        crops.make(trainer.segmenter, say=print)
        return trainer.run().eval(), crops


@torch.no_grad()
def post_hoc(
    trained: Segmenter, crops: CachedCrops, *, components: int = 5, passes: int = 10, block: int = 16
) -> Segmenter:
    """Mixtures fitted by EM on the features of a trained softmax network, at one crop of each image."""
    channels = trained.features.out_channels
    assert isinstance(channels, int)
    settings = HeadSettings(
        components=components, dim=channels, projection="none", coordinates="plain", link="bayes"
    )
    fitted = replace_head(trained, settings).eval()
    assert fitted.mixture is not None
    network, points, labels = OnCachedMaps(fitted, crops), [], []
    crops.set_epoch(0)
    for start in range(0, len(crops), block):
        indices = range(start, min(start + block, len(crops)))
        batch = collate_crops([crops[index] for index in indices])
        each = fitted.em_points(network(batch.images), batch.labels)
        points.append(each.points)
        labels.append(each.labels)
    fitted.mixture.fit(torch.cat(points), torch.cat(labels), passes=passes)
    return fitted
