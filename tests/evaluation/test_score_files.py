import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from gmmseg.evaluation import AnomalyCurve, EvaluationError, evaluate_score_files
from gmmseg.evaluation.score_files import pair_files, read_mask, read_scores
from gmmseg.labels import IGNORE


def write_scores(path: Path, scores: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, scores)
    elif path.suffix == ".npz":
        np.savez_compressed(path, scores=scores)
    elif path.suffix == ".png":
        Image.fromarray(scores).save(path)
    else:
        with h5py.File(path, "w") as file:
            file["value"] = scores


def write_mask(path: Path, mask: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask.astype(np.uint8)).save(path)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Four images whose scores are saved in the four kinds of files."""
    rng = np.random.default_rng(0)
    for folder in ("scores", "masks"):
        (tmp_path / folder).mkdir()
    for index, suffix in enumerate((".npy", ".npz", ".png", ".h5")):
        mask = (rng.random((20, 30)) < 0.1).astype(np.uint8)
        mask[0], mask[5:10, 5:10] = IGNORE, 1
        scores = np.round(50 * (rng.standard_normal(mask.shape) + (mask == 1)) + 300).astype(np.uint16)
        saved = scores if suffix == ".png" else scores.astype(np.float32)[None if index % 2 else ...]
        write_scores(tmp_path / "scores" / f"image{index}{suffix}", saved)
        write_mask(tmp_path / "masks" / f"image{index}_labels_semantic.png", mask)
    write_mask(tmp_path / "masks" / "image0_labels_semantic_color.png", np.zeros((20, 30)))
    return tmp_path / "scores", tmp_path / "masks"


def test_all_kinds_of_files_give_the_figures_of_their_arrays(folders: tuple[Path, Path]) -> None:
    seen = []
    results = evaluate_score_files(
        *folders, name="mine", components="obstacle", intervals=True, progress=lambda *step: seen.append(step)
    )
    curve = AnomalyCurve()
    for _, scores, mask in pair_files(*folders):
        curve.update(read_scores(scores).astype(np.float32), read_mask(mask))
    entry = results["sets"]["mine"]
    for name, value in curve.compute().items():
        assert entry["scores"]["scores"][name] == value
    assert (entry["images"], entry["pixels"], entry["ignored_pixels"]) == (4, 4 * 570, 4 * 30)
    assert entry["scores"]["scores"]["components"]["threshold"] == curve.threshold_at_best_f1()
    assert [step[:2] for step in seen] == [(done, 8) for done in range(1, 9)]


def test_road_anomaly_layout_and_values(tmp_path: Path) -> None:
    write_mask(tmp_path / "frames" / "cow.labels" / "labels_semantic.png", np.array([[0, 2], [2, 0]]))
    (tmp_path / "scores").mkdir()
    np.save(tmp_path / "scores" / "cow.npy", np.array([[0.0, 1], [2, 3]]))
    results = evaluate_score_files(
        tmp_path / "scores", tmp_path / "frames", name="road", mask_values={0: 0, 2: 1}
    )
    assert results["sets"]["road"]["scores"]["scores"]["auroc"] == 0.5
    with pytest.raises(EvaluationError, match=r"labels_semantic\.png: mask values \[2\] are not defined"):
        evaluate_score_files(tmp_path / "scores", tmp_path / "frames")


def spoil_nan(scores: Path, masks: Path) -> None:
    np.save(scores / "image0.npy", np.full((20, 30), np.nan))


def spoil_size(scores: Path, masks: Path) -> None:
    np.save(scores / "image0.npy", np.zeros((20, 31)))


def spoil_half(scores: Path, masks: Path) -> None:
    np.save(scores / "image0.npy", np.full((20, 30), np.inf, dtype=np.float16))


def spoil_axes(scores: Path, masks: Path) -> None:
    np.save(scores / "image0.npy", np.zeros((3, 20, 30)))


def spoil_mask_value(scores: Path, masks: Path) -> None:
    write_mask(masks / "image0_labels_semantic.png", np.full((20, 30), 7))


def spoil_all_ignored(scores: Path, masks: Path) -> None:
    write_mask(masks / "image0_labels_semantic.png", np.full((20, 30), IGNORE))


def spoil_missing_score(scores: Path, masks: Path) -> None:
    (scores / "image0.npy").unlink()


def spoil_missing_mask(scores: Path, masks: Path) -> None:
    (masks / "image0_labels_semantic.png").unlink()


def spoil_twice(scores: Path, masks: Path) -> None:
    write_scores(scores / "image0.npz", np.zeros((20, 30)))


def spoil_archive(scores: Path, masks: Path) -> None:
    np.savez(scores / "image1.npz", a=np.zeros(2), b=np.zeros(2))


def spoil_bytes(scores: Path, masks: Path) -> None:
    (scores / "image0.npy").write_bytes(b"not an array")


def spoil_hdf5(scores: Path, masks: Path) -> None:
    (scores / "image3.h5").write_bytes(b"not HDF5")


def spoil_colour(scores: Path, masks: Path) -> None:
    Image.new("RGB", (30, 20)).save(scores / "image2.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_nan, r"image0\.npy: 600 scores are NaN"),
        (spoil_size, r"image0\.npy: .*differ in size"),
        (spoil_half, r"image0\.npy: float16 scores overflowed"),
        (spoil_axes, r"image0\.npy: a score map has two axes"),
        (spoil_mask_value, r"image0_labels_semantic\.png: mask values \[7\]"),
        (spoil_all_ignored, r"image0\.npy: every pixel is ignored"),
        (spoil_missing_score, r"masks without scores: image0"),
        (spoil_missing_mask, r"scores without masks: image0"),
        (spoil_twice, r"image0\.npz and .*image0\.npy are both"),
        (spoil_archive, r"image1\.npz: one array is expected, it holds \['a', 'b'\]"),
        (spoil_bytes, r"image0\.npy: cannot be read"),
        (spoil_hdf5, r"image3\.h5: cannot be read"),
        (spoil_colour, r"image2\.png: a score PNG is greyscale"),
    ],
)
def test_bad_files_are_named(folders: tuple[Path, Path], spoil, message: str) -> None:
    spoil(*folders)
    with pytest.raises(EvaluationError, match=message):
        evaluate_score_files(*folders)


@pytest.mark.parametrize("name", ["scores/a.npy", "scores/a.png", "scores/a.h5", "masks/a.png"])
def test_pipes_are_refused_at_once(tmp_path: Path, name: str) -> None:
    for folder in ("scores", "masks"):
        (tmp_path / folder).mkdir()
        other = tmp_path / folder / "a.png"
        if not name.startswith(folder):
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(other)
    os.mkfifo(tmp_path / name)
    with pytest.raises(EvaluationError, match=rf"{name}.*no regular file"):
        evaluate_score_files(tmp_path / "scores", tmp_path / "masks")


def test_empty_and_absent_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no such folder of score maps"):
        pair_files(tmp_path / "nowhere", tmp_path)
    with pytest.raises(EvaluationError, match="holds no score map"):
        pair_files(tmp_path, tmp_path)


def test_a_set_without_anomalies_is_refused(tmp_path: Path) -> None:
    write_mask(tmp_path / "masks" / "a.png", np.zeros((4, 4)))
    (tmp_path / "scores").mkdir()
    np.save(tmp_path / "scores" / "a.npy", np.zeros((4, 4)))
    with pytest.raises(EvaluationError, match="no anomalous pixel"):
        evaluate_score_files(tmp_path / "scores", tmp_path / "masks")


def test_real_road_anomaly_masks_from_end_to_end(shared: Path, tmp_path: Path) -> None:
    """Eight real masks with scores that half know them; the figures are those of the pooled pixels."""
    frames = shared / "data" / "road_anomaly" / "frames"
    if not frames.is_dir():
        pytest.skip(f"no Road Anomaly at {frames}")
    rng = np.random.default_rng(0)
    scores, truth = [], []
    for folder in sorted(frames.glob("*.labels"))[:8]:
        mask = read_mask(folder / "labels_semantic.png", {0: 0, 2: 1})
        write_mask(tmp_path / "masks" / folder.name / "labels_semantic.png", 2 * mask)
        noisy = (rng.standard_normal(mask.shape) + 1.5 * mask).astype(np.float32)
        (tmp_path / "scores").mkdir(exist_ok=True)
        np.save(tmp_path / "scores" / f"{folder.name.removesuffix('.labels')}.npy", noisy)
        scores.append(noisy.ravel())
        truth.append(mask.ravel())
    found = evaluate_score_files(
        tmp_path / "scores", tmp_path / "masks", name="road_anomaly", mask_values={0: 0, 2: 1}
    )["sets"]["road_anomaly"]
    exact = AnomalyCurve(exact=True)
    exact.update(np.concatenate(scores), np.concatenate(truth))
    assert found["images"] == 8
    assert found["pixels"] == 8 * 1280 * 720
    for name in ("auroc", "ap", "fpr95"):
        assert found["scores"]["scores"][name] == pytest.approx(exact.compute()[name], abs=1e-4)
