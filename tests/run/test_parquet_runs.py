"""Runs on parquet files: like any other data set."""

import pytest

from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.run import evaluate, open_model, train

SETTINGS = (
    "data.crop=[24,32]", "data.balanced=true", "data.workers=1", "model.name=tiny_unet", "model.weights=null",
    "train.steps=4", "train.batch_size=2", "train.backbone_multiplier=1", "train.validate_every=4",
)  # fmt: skip


@pytest.fixture
def rows(root, tmp_path, monkeypatch):
    """The images of the small folder in parquet files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Image()})
    place = tmp_path / "rows"
    place.mkdir()
    for split in ("train", "val"):
        files = sorted((root / "images" / split).iterdir())
        pairs = [(file, root / "labels" / split / file.name) for file in files]
        table = [
            {key: {"bytes": path.read_bytes()} for key, path in zip(("image", "label"), pair)}
            for pair in pairs
        ]
        stored = datasets.Dataset.from_list(table, features=features)
        stored.to_parquet(place / f"{split}.parquet")
    (place / "classes.txt").write_text((root / "classes.txt").read_text())
    return place


def test_a_run_on_parquet_files_is_the_run_on_the_same_images_in_a_folder(root, rows, tmp_path):
    """Weights byte for byte, and what evaluating them gives: only where the images come from differs."""
    found = []
    for name, place in (("folder", root), ("hf", rows), ("hf_stream", rows)):
        config = load_config("folder", [f"data.name={name}", f"data.root={place}", *SETTINGS])
        weights = train(config, tmp_path / name, cpu=True)
        results = evaluate(open_model(weights), "run", [open_dataset(name, place, "val")])
        found.append(
            ((weights / "model.safetensors").read_bytes(), results["sets"][f"{name}/val"]["metrics"])
        )
    assert found[0] == found[1] == found[2]
