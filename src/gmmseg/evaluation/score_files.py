"""Other people's saved score maps: read, paired with masks by name, and evaluated with the same code."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.pooled import EvaluationError
from gmmseg.evaluation.results import anomaly_entry, build_results
from gmmseg.images import open_image, refuse_odd_file
from gmmseg.json_tree import JSON
from gmmseg.labels import IGNORE
from gmmseg.samples import Progress

SCORE_SUFFIXES = (".npy", ".npz", ".png", ".h5", ".hdf5")
MASK_ENDINGS = ("_labels_semantic", "_labels", "_mask", "_gt")
"""What data sets append to an image's name for its mask; taken off before pairing."""

MOST_PIXELS = 200_000_000
"""Pixels of a score map; Pillow stops at about as many."""
PREDICTED = "anomaly"
"""The array of scores among others in a file of `gmmseg predict --raw`."""
MASK_VALUES = {0: 0, 1: 1, IGNORE: IGNORE}


def read_scores(path: Path) -> NDArray:
    """The score map (h w) of a file, in the type it was saved in."""
    read = _READERS.get(path.suffix.lower())
    if read is None:
        known = ", ".join(SCORE_SUFFIXES)
        raise EvaluationError(f"{path}: unknown kind of score file; there are {known}")
    refuse_odd_file(path, EvaluationError)
    try:
        scores = np.squeeze(read(path))
    except EvaluationError:
        raise
    except Exception as error:  # readers of broken files fail in every way there is
        raise EvaluationError(f"{path}: cannot be read as a score map ({error}); save it again") from error
    if scores.ndim != 2 or not scores.size:
        raise EvaluationError(f"{path}: a score map has two axes (h w), this one has shape {scores.shape}")
    if not (np.issubdtype(scores.dtype, np.floating) or np.issubdtype(scores.dtype, np.integer)):
        raise EvaluationError(f"{path}: scores are numbers, this map holds {scores.dtype}")
    return scores


def _read_npy(path: Path) -> NDArray:
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: no memory for a false size


def _read_npz(path: Path) -> NDArray:
    with zipfile.ZipFile(path) as archive:
        _refuse_large(path, max((entry.file_size for entry in archive.infolist()), default=0) // 8)
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        return archive[PREDICTED if PREDICTED in names else _only(path, names)]


def _refuse_large(path: Path, pixels: int) -> None:
    """A few bytes of a packed file may unpack to more than memory holds."""
    if pixels > MOST_PIXELS:
        raise EvaluationError(f"{path}: {pixels} pixels, at most {MOST_PIXELS} are read; save it in parts")


def _read_hdf5(path: Path) -> NDArray:
    try:
        import h5py
    except ImportError:
        raise EvaluationError(f"{path}: reading HDF5 needs h5py: pip install 'gmmseg[hdf5]'") from None
    with h5py.File(path, "r") as file:
        links = {name: file.get(name, getlink=True) for name in file}
        inside = [name for name, link in links.items() if isinstance(link, h5py.HardLink)]
        maps = [name for name in inside if isinstance(file[name], h5py.Dataset)]
        chosen = file[_only(path, maps + [name for name in links if name not in inside])]
        if not isinstance(chosen, h5py.Dataset) or chosen.external or chosen.is_virtual or not inside:
            raise EvaluationError(
                f"{path}: its scores lie in another file; save the numbers themselves into this one"
            )
        _refuse_large(path, chosen.size)
        return np.asarray(chosen)


def _read_png(path: Path) -> NDArray:
    with open_image(path) as image:
        if image.mode in ("P", "RGB", "RGBA", "LA"):
            raise EvaluationError(
                f"{path}: a score PNG is greyscale of 8 or 16 bits, this one is {image.mode}"
            )
        return np.asarray(image)


def _only(path: Path, names: list[str]) -> str:
    if len(names) != 1:
        raise EvaluationError(
            f"{path}: one array is expected, it holds {names or 'none'}; save the scores alone"
        )
    return names[0]


_READERS: dict[str, Callable[[Path], NDArray]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".png": _read_png,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}


def read_mask(path: Path, values: Mapping[int, int] = MASK_VALUES) -> NDArray[np.uint8]:
    """The mask (h w) uint8 of 0, 1 and IGNORE; ``values`` says what the file's own values stand for."""
    refuse_odd_file(path, EvaluationError)
    try:
        with open_image(path) as image:
            raw = np.asarray(image)
    except Exception as error:  # decoders fail in every way there is
        raise EvaluationError(f"{path}: cannot be read as a mask ({error}); save it again") from error
    if raw.ndim != 2:
        raise EvaluationError(f"{path}: a mask has one channel, this image has shape {raw.shape}")
    if np.issubdtype(raw.dtype, np.floating):
        raise EvaluationError(f"{path}: a mask holds whole numbers, this one {raw.dtype}; save it as PNG")
    odd = sorted({int(value) for value in np.unique(raw)} - set(values))
    if odd:
        raise EvaluationError(f"{path}: mask values {odd[:8]} are not defined; defined are {sorted(values)}")
    mask = np.full(raw.shape, IGNORE, dtype=np.uint8)
    for value, meaning in values.items():
        mask[raw == value] = meaning
    return mask


def pair_files(scores_dir: str | Path, masks_dir: str | Path) -> list[tuple[str, Path, Path]]:
    """(name, score file, mask file) of every image; anything without a partner is an error that names it.

    Masks are ``<name>.png`` with or without one of MASK_ENDINGS, or Road Anomaly's
    ``<name>.labels/labels_semantic.png``. Colour pictures of masks (``*_color.png``) are not masks.
    """
    scores = _by_name(Path(scores_dir), SCORE_SUFFIXES, "score map")
    masks = _by_name(Path(masks_dir), (".png",), "mask")
    without_scores, without_masks = sorted(set(masks) - set(scores)), sorted(set(scores) - set(masks))
    if without_scores or without_masks:
        raise EvaluationError(
            f"scores in {scores_dir} and masks in {masks_dir} do not pair up by name; "
            f"masks without scores: {_listed(without_scores)}; scores without masks: {_listed(without_masks)}"
        )
    return [(name, scores[name], masks[name]) for name in sorted(masks)]


def _by_name(folder: Path, suffixes: tuple[str, ...], what: str) -> dict[str, Path]:
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: no such folder of {what}s")
    found: dict[str, Path] = {}
    for path in sorted([*folder.iterdir(), *folder.glob("*.labels/labels_semantic.png")]):
        if path.suffix.lower() not in suffixes or path.stem.endswith("_color") or path.is_dir():
            continue
        name = _image_name(path)
        if name in found:
            raise EvaluationError(f"{path} and {found[name]} are both the {what} of {name!r}; keep one")
        found[name] = path
    if not found:
        raise EvaluationError(f"{folder}: holds no {what} ({', '.join(suffixes)})")
    return found


def _image_name(path: Path) -> str:
    if path.parent.name.endswith(".labels"):
        return path.parent.name.removesuffix(".labels")
    for ending in MASK_ENDINGS:
        if path.stem.endswith(ending):
            return path.stem.removesuffix(ending)
    return path.stem


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def evaluate_score_files(
    scores_dir: str | Path,
    masks_dir: str | Path,
    *,
    name: str = "scores",
    mask_values: Mapping[int, int] = MASK_VALUES,
    components: str | None = None,
    intervals: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> JSON:
    """The results (see ``build_results``) of saved score maps against masks, one set called ``name``.

    ``components`` ("anomaly" or "obstacle") adds the component metrics, which need a second pass;
    ``intervals`` adds bootstrap confidence intervals. ``progress(done, total, file)`` is called per image.
    """
    pairs = pair_files(scores_dir, masks_dir)
    total = len(pairs) * (2 if components else 1)
    curve = AnomalyCurve(exact=exact, per_image=intervals)
    for done, (_, score_path, mask_path) in enumerate(pairs):
        curve.update(read_scores(score_path), read_mask(mask_path, mask_values), source=str(score_path))
        _report(progress, done + 1, total, score_path)
    parts = None
    if components:
        parts = ComponentMetrics(components, threshold=curve.threshold_at_best_f1())
        for done, (_, score_path, mask_path) in enumerate(pairs):
            parts.update(read_scores(score_path), read_mask(mask_path, mask_values), source=str(score_path))
            _report(progress, len(pairs) + done + 1, total, score_path)
    entry = anomaly_entry({"scores": curve}, {"scores": parts} if parts else {})
    asked = {"scores": str(Path(scores_dir).resolve()), "masks": str(Path(masks_dir).resolve())}
    return build_results(name, {name: {**entry, "asked": asked}}, settings=asked)


def _report(progress: Progress | None, done: int, total: int, path: Path) -> None:
    if progress:
        progress(done, total, path.name)
