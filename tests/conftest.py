"""Fixtures shared by all rooms."""

import os
from pathlib import Path

import pytest
import torch

import gmmseg  # noqa: F401  installs the torchvision repair before any test imports torchvision

torch.set_num_threads(1)  # tests run on several workers; more threads only make them fight


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and weights beside the checkout; tests that need it skip without it."""
    folder = Path(os.environ.get("GMMSEG_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(
            f"no real data at {folder}: set GMMSEG_SHARED to the folder that holds data/ and weights/"
        )
    return folder


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
