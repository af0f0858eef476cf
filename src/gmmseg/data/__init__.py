"""Files to tensors: data sets of labelled images, known by name.

Transforms live in ``gmmseg.data.transforms``, which loads torchvision; everything here does without it.
"""

from gmmseg.data.catalog import DATASETS, SegmentationData, open_dataset
from gmmseg.data.files import DataError
from gmmseg.data.paired import Pair, PairedFiles
from gmmseg.data.sample import Batch, Sample, collate
from gmmseg.data.scenes import Scenes, ScenesAnomaly
from gmmseg.data.spaces import load_label_space

__all__ = [
    "DATASETS",
    "Batch",
    "DataError",
    "Pair",
    "PairedFiles",
    "Sample",
    "Scenes",
    "ScenesAnomaly",
    "SegmentationData",
    "collate",
    "load_label_space",
    "open_dataset",
]
