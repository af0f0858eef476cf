"""Images and label maps read from files."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})


class DataError(ValueError):
    """Files of a data set are missing, unreadable or not where its layout puts them."""


def read_image(path: Path) -> np.ndarray:
    """RGB image (h w 3) uint8, turned upright as its EXIF data says."""
    refuse_odd_file(path)
    try:
        with Image.open(path) as file:
            return np.array(ImageOps.exif_transpose(file).convert("RGB"))
    except Exception as error:  # decoders fail in every way there is
        raise DataError(f"{path}: cannot be read as an image ({error}); replace or remove it") from error


def read_ids(path: Path) -> np.ndarray:
    """Label ids (h w), integers as stored: palette images give their indices."""
    refuse_odd_file(path)
    try:
        with Image.open(path) as file:
            bands, ids = file.getbands(), np.array(file)
    except Exception as error:  # decoders fail in every way there is
        raise DataError(f"{path}: cannot be read as a label image ({error}); replace or remove it") from error
    if len(bands) != 1:
        raise DataError(
            f"{path}: has {len(bands)} channels {''.join(bands)}; label files hold one id per pixel, "
            "not colours: store them as single-channel PNG"
        )
    if not np.issubdtype(ids.dtype, np.integer) and ids.dtype != bool:
        raise DataError(
            f"{path}: holds {ids.dtype}, numbers with a fraction; label files hold whole ids: use PNG"
        )
    return ids.astype(np.uint8) if ids.dtype == bool else ids


def refuse_odd_file(path: Path) -> None:
    """Only a regular file is read: a pipe or a device would be waited for without end."""
    if not path.is_file():
        raise DataError(f"{path}: cannot be read, there is no regular file here; replace or remove it")


def list_images(folder: Path) -> list[Path]:
    """Image files directly in ``folder``, by name; none when there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
