"""The work of each cell of the paper's tables in floating-point operations: counted, not timed.

    python benchmarks/work_of_cells.py

A forward pass of one training crop is counted by torch's own counter, a product and a sum being two
operations. Tensors are fake, so that nothing is computed, except for Mask2Former, whose pass depends on its
values. A training step is taken as three forward passes per image. Writes
benchmarks/results/work_of_cells.json.
"""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import gmmseg
from gmmseg.config import Config, load_config
from gmmseg.data import load_label_space

SETS = ("ade20k", "cityscapes", "coco_stuff_10k")
NETWORKS = (
    *("fcn_resnet101", "deeplabv3plus_resnet101", "ocrnet_hrnet_w48"),
    *("upernet_swin_base", "segformer_mit_b5", "mask2former_swin_large"),
)
PROCESSES = 8
"""What the batch sizes of the configurations are for."""
PASSES = 3
"""Forward passes that a training step costs per image: the backward pass counts for two."""
RESULTS = Path(__file__).parent / "results" / "work_of_cells.json"


def forward_operations(config: Config, classes: int) -> int:
    """Operations of the forward pass of one training crop."""
    is_of_masks = config.model.name.startswith("mask2former")
    images = 1 if is_of_masks else 2  # batch norm of pooled features needs two
    with nullcontext() if is_of_masks else FakeTensorMode(), torch.no_grad():
        model = gmmseg.build(config.model.name, num_classes=classes, head=config.model.head).train()
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(images, 3, *config.data.crop))
    return counter.get_total_flops() // images


def cells() -> Iterator[tuple[str, dict[str, float]]]:
    """Each configuration with the operations of a crop, the images of the run, and those of the run."""
    for name in (f"{data}_{network}" for data in SETS for network in NETWORKS):
        config = load_config(name)
        forward = forward_operations(config, len(load_label_space(config.data.name)))
        images = config.train.steps * config.train.batch_size * config.train.accumulate * PROCESSES
        yield name, {"forward": forward, "images": images, "training": PASSES * forward * images}


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for name, work in cells():
        found[name] = work
        print(
            f"{name:<40} {work['forward'] / 1e9:8.0f} GFLOP a crop {work['training'] / 1e18:6.1f} EFLOP",
            flush=True,
        )
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
