"""Files to tensors: data sets of labelled images, known by name.

Transforms live in ``gmmseg.data.transforms``, which loads torchvision; everything here does without it.
"""

from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.catalog import DATASETS, open_dataset
from gmmseg.data.check import CheckReport, check_dataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.paired import Pair, PairedFiles
from gmmseg.data.reading import DataError
from gmmseg.data.samplers import ClassBalancedSampler, class_counts, class_shares
from gmmseg.data.scenes import Scenes, ScenesAnomaly, Streets, StreetsAnomaly
from gmmseg.data.spaces import load_label_space
from gmmseg.samples import Batch, FingerprintedDataset, Sample, SegmentationDataset, collate

__all__ = [
    "DATASETS",
    "AugmentedDataset",
    "Batch",
    "CheckReport",
    "ClassBalancedSampler",
    "DataError",
    "EpochLoader",
    "FingerprintedDataset",
    "Pair",
    "PairedFiles",
    "Sample",
    "Scenes",
    "ScenesAnomaly",
    "SegmentationDataset",
    "ShuffledSampler",
    "Streets",
    "StreetsAnomaly",
    "check_dataset",
    "class_counts",
    "class_shares",
    "collate",
    "load_label_space",
    "open_dataset",
]
