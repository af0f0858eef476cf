"""One way in for images: whatever holds one becomes a tensor (3 h w), RGB in [0, 1]."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

ImageSource = str | os.PathLike | Image.Image | np.ndarray | Tensor

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".avif", ".jp2"}
)

_FULL_SCALE = {np.dtype(np.bool_): 1.0, np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


class ImageError(ValueError):
    """Something given as an image cannot be read as one."""


def load_image(source: ImageSource) -> Tensor:
    """Pixels (3 h w) float32, RGB in [0, 1], of a path, a PIL image, an array or a tensor.

    Arrays are (h w), (h w 1), (h w 3) or (h w 4), tensors (h w), (1 h w), (3 h w) or (4 h w); integers span
    their type's range, floats lie in [0, 1]. Grey becomes three equal channels; 16 bits are scaled, not cut
    off; alpha is dropped (the colours beneath it are kept); EXIF rotation is applied; of an animation the
    first frame is taken. Anything else raises ImageError, naming the file.
    """
    if isinstance(source, Tensor):
        return _from_array(_channels_last(source), "tensor")
    if isinstance(source, np.ndarray):
        return _from_array(source, "array")
    if isinstance(source, Image.Image):
        return _from_pil(source, "image")
    return _from_path(Path(source))


def _from_path(path: Path) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such image file")
    try:
        with Image.open(path) as image:
            return _from_pil(image, str(path))
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{path}: {error}. If the file is to be trusted, set PIL.Image.MAX_IMAGE_PIXELS = None"
        ) from error
    except ImageError:
        raise
    except Exception as error:  # decoders fail in every way there is: OSError, SyntaxError, struct.error ...
        raise ImageError(f"{path}: not a readable image, broken or cut off ({error})") from error


def _from_pil(image: Image.Image, source: str) -> Tensor:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _from_array(np.asarray(image).astype(np.uint16), source)
    if image.mode == "I":
        return _from_array(_sixteen_bit(np.asarray(image), source), source)
    if image.mode == "F":
        return _from_array(np.asarray(image), source)
    return _from_array(np.array(image.convert("RGB")), source)


def _sixteen_bit(values: np.ndarray, source: str) -> np.ndarray:
    """32-bit integer pixels as 16-bit ones, which is what files decoded that way hold."""
    if values.size and (values.min() < 0 or values.max() > 65535):
        raise ImageError(f"{source}: 32-bit integer pixels beyond 0..65535; convert it to 8 or 16 bit")
    return values.astype(np.uint16)


def _channels_last(image: Tensor) -> np.ndarray:
    values = image.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    if values.ndim == 3:
        if values.shape[0] not in (1, 3, 4):
            raise ImageError(f"tensor of shape {tuple(values.shape)}: an image is (3 h w), (1 h w) or (h w)")
        values = values.movedim(0, -1)
    return values.numpy()


def _from_array(values: np.ndarray, source: str) -> Tensor:
    """Pixels (3 h w) of values (h w) or (h w channels)."""
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[-1] not in (1, 3, 4) or 0 in values.shape:
        raise ImageError(f"{source} of shape {values.shape}: an image is (h w), (h w 1), (h w 3) or (h w 4)")
    pixels = torch.from_numpy(np.ascontiguousarray(_in_unit_range(values[..., :3], source))).movedim(-1, 0)
    return pixels.expand(3, -1, -1).contiguous()


def _in_unit_range(values: np.ndarray, source: str) -> np.ndarray:
    if values.dtype in _FULL_SCALE:
        return values.astype(np.float32) / np.float32(_FULL_SCALE[values.dtype])
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(f"{source} of {values.dtype}: pixels are uint8, uint16, bool, or floats in [0, 1]")
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # also catches NaN
        raise ImageError(
            f"{source}: float pixels must lie in [0, 1], not {low:g} .. {high:g}: divide by full scale"
        )
    return values.astype(np.float32)
