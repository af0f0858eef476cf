"""Training on kept features of a frozen backbone: same network, loss, optimizer and EM, several times faster.

A frozen backbone gives the same maps whenever it sees the same crop. So every training image is looked at a
few times through the usual augmentation, the joined maps of the backbone are kept in half precision, and
`gmmseg.training.Trainer` trains decoder and head on those. The trained modules are shared with the whole
network, which is then judged on images like any other.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor

from gmmseg import run
from gmmseg.config import Config
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import ShuffledSampler
from gmmseg.data.samplers import ClassBalancedSampler
from gmmseg.data.transforms import training_transform
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter
from gmmseg.models.features import FeatureExtractor, Features
from gmmseg.models.heads import HeadSettings
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.pyramid import FrozenPyramidFeatures
from gmmseg.models.segmenter import replace_head
from gmmseg.samples import Batch


class Looks:
    """Several augmented crops of every training image: maps (n f h w) float16, labels (n H/2 W/2) uint8.

    Labels are kept at half the crop's resolution, which is what the loss is then computed at.
    """

    def __init__(self, config: Config, looks: int) -> None:
        dataset = run.training_data(config.data)
        self.label_space, self.count = dataset.label_space, looks
        pyramid = _pyramid(run.make_segmenter(config, dataset))
        transform = training_transform(config.data.crop, scale=config.data.scale)
        augmented = AugmentedDataset(dataset, transform, seed=0)
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (pyramid.mean, pyramid.std))
        maps, labels = [], []
        for epoch in range(looks):
            augmented.set_epoch(epoch)
            for index in range(len(augmented)):
                sample = augmented[index]
                images = ((sample.image.float() / 255 - mean) / std)[None]
                maps.append(pyramid.joined(images)[0].half())
                half = [side // 2 for side in sample.labels.shape]
                labels.append(shrink_labels(sample.labels[None], torch.Size(half))[0])
            print(f"look {epoch + 1} of {looks} at {len(augmented)} images", flush=True)
        self.maps, self.labels = torch.stack(maps), torch.stack(labels)


class CachedLoader:
    """Batches of kept looks in an order that depends on the seed and the epoch."""

    def __init__(self, looks: Looks, batch_size: int, *, balanced: bool, seed: int) -> None:
        self.looks, self.batch_size = looks, batch_size
        self.sampler: ShuffledSampler | ClassBalancedSampler = ShuffledSampler(len(looks.maps), seed=seed)
        if balanced:
            counts = torch.stack(
                [torch.bincount(each.flatten(), minlength=IGNORE + 1) for each in looks.labels]
            )
            known = counts[:, : len(looks.label_space)].numpy()
            self.sampler = ClassBalancedSampler(known, length=len(looks.maps), seed=seed)

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        order = [index % len(self.looks.maps) for index in self.sampler]
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            chosen = order[start : start + self.batch_size]
            names = [str(index) for index in chosen]
            yield Batch(self.looks.maps[chosen].float(), self.looks.labels[chosen].long(), names)


class Decoder(FeatureExtractor):
    """The trainable half of a frozen pyramid: joined maps in, features out."""

    def __init__(self, pyramid: FrozenPyramidFeatures) -> None:
        super().__init__()
        self.pyramid, self.backbone = pyramid, pyramid.backbone
        self.out_channels, self.stride = pyramid.out_channels, pyramid.stride

    def forward(self, joined: Tensor) -> Features:
        return Features(self.pyramid.decode(joined))


class OnJoinedMaps(Segmenter):
    """A segmenter whose images are joined maps already."""

    def normalise(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


def train(config: Config, looks: Looks) -> Segmenter:
    """The network of ``config``, decoder and head trained on ``looks``."""
    set_seed(config.train.seed)
    dataset = run.training_data(config.data)
    whole = run.make_segmenter(config, dataset)
    trained = OnJoinedMaps(Decoder(_pyramid(whole)), whole.head)
    loader = CachedLoader(
        looks, config.train.batch_size, balanced=config.data.balanced, seed=config.train.seed
    )
    with tempfile.TemporaryDirectory() as folder:
        run.make_trainer(config, trained, loader, Accelerator(cpu=True), Path(folder)).run()
    return whole.eval()


def post_hoc(trained: Segmenter, looks: Looks, *, components: int = 5, passes: int = 10) -> Segmenter:
    """Mixtures fitted by EM on the features of a trained softmax network, at one look at each image."""
    pyramid = _pyramid(trained)
    settings = HeadSettings(
        components=components, dim=pyramid.out_channels, projection="none", coordinates="plain", link="bayes"
    )
    fitted = replace_head(trained, settings)
    assert fitted.mixture is not None
    points, labels = [], []
    with torch.no_grad():
        for start in range(0, len(looks.maps) // looks.count, 16):
            part = slice(start, start + 16)
            output = fitted.head(pyramid.decode(looks.maps[part].float()))
            each = fitted.em_points(output, looks.labels[part].long())
            points.append(each[0])
            labels.append(each[1])
    fitted.mixture.fit(torch.cat(points), torch.cat(labels), passes=passes)
    return fitted


def _pyramid(segmenter: Segmenter) -> FrozenPyramidFeatures:
    assert isinstance(segmenter.features, FrozenPyramidFeatures), "the experiments cache a frozen pyramid"
    return segmenter.features
