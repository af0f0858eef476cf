"""The one reader of images: whatever holds one becomes a tensor (3 h w), RGB in [0, 1].

Training, prediction and `gmmseg data check` all read files here, so the same file is the same pixels in each.
"""

import io
import os
import threading
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

ImageSource = str | os.PathLike | Image.Image | np.ndarray | Tensor

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".avif", ".jp2"}
)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF", "JPEG2000")
"""What a file may be, whatever its name says. Some of Pillow's other decoders start programs (EPS)."""

MAX_PIXELS = 1 << 26
"""67 million: a larger image is refused unless the caller raises the limit."""

_pillow_limit = threading.Lock()


class ImageError(ValueError):
    """Something given as an image cannot be read as one.

    ``reason`` is the message without its name, and without ``option``: what commands and Python can do.
    """

    def __init__(self, source: object, reason: str, *, kind: str = "image", option: str = "") -> None:
        super().__init__(f"{source}: not a readable {kind}, {reason}{option}")
        self.reason = reason


def load_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Pixels (3 h w) float32, RGB in [0, 1], of a path, a PIL image, an array or a tensor.

    Arrays are (h w), (h w 1), (h w 3) or (h w 4), tensors (h w), (1 h w), (3 h w) or (4 h w); integers span
    their type's range, floats lie in [0, 1]. Grey becomes three equal channels; alpha is dropped (the
    colours beneath it are kept); EXIF rotation is applied; of an animation the first frame is taken. Files,
    PIL images and integers of 16 bits are scaled and rounded to the 8 bits that training sees; floats in
    memory are taken as they are. Anything else, and a file of more than ``max_pixels``, is an ImageError.
    """
    if isinstance(source, Tensor):
        return _from_array(_channels_last(source), "tensor")
    if isinstance(source, np.ndarray):
        return _from_array(source, "array")
    if isinstance(source, Image.Image):
        return _from_array(_from_pil(source, "image"), "image")
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise TypeError(f"an image is a path, a PIL image, an array or a tensor, not {kind}")
    return _from_array(read_image(Path(source), max_pixels=max_pixels), str(source))


def read_image(path: Path, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """RGB pixels (h w 3) uint8 of a file, by the rules of `load_image`."""
    try:
        with open_image(path, max_pixels=max_pixels) as image:
            return read_pixels(image, str(path))
    except (ImageError, FileNotFoundError):
        raise
    except Exception as error:  # what opening a file that is no image raises
        raise ImageError(path, f"broken or cut off ({error})") from error


def open_image(path: Path, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The file opened by Pillow, if it is of one of FORMATS; pixels are not decoded yet.

    Pipes and devices, which could make it wait for ever, are refused, and so is more than ``max_pixels``.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such image file")
    image = _open_of_any_size(path)
    try:
        check_pixels(path, image.size, max_pixels)
    except ImageError:
        image.close()
        raise
    return image


def open_encoded(content: bytes, source: str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """`open_image` for the content of a file; ``source`` is its name in messages."""
    image = _open_of_any_size(io.BytesIO(content))
    check_pixels(source, image.size, max_pixels)
    return image


def read_pixels(image: Image.Image, source: str) -> np.ndarray:
    """RGB pixels (h w 3) uint8 of an image opened here, by the rules of `load_image`."""
    try:
        return _from_pil(image, source)
    except ImageError:
        raise
    except Exception as error:  # decoders fail in every way there is: OSError, SyntaxError, struct.error ...
        raise ImageError(source, f"broken or cut off ({error})") from error


def to_unit_range(pixels: Tensor) -> Tensor:
    """Pixels of any shape as floats in [0, 1]: uint8 over 255, in float32; floats as they are."""
    return pixels if pixels.is_floating_point() else pixels.float().div_(255)


def refuse_odd_file(path: Path, error: type[ValueError]) -> None:
    """Raise ``error`` unless ``path`` is a regular file: a pipe or a device would be waited for for ever."""
    if not path.is_file():
        raise error(f"{path}: cannot be read, there is no regular file here; replace or remove it")


def check_pixels(source: object, size: tuple[int, int], max_pixels: int, *, kind: str = "image") -> None:
    """Refuse an image or a frame whose ``size`` (width, height) is of more than ``max_pixels``."""
    width, height = size
    pixels = width * height
    if pixels > max_pixels:
        raise ImageError(
            source,
            f"its {width}x{height} = {pixels:,} pixels exceed the limit of {max_pixels:,}; make it smaller",
            kind=kind,
            option=f", or trust it: predict --max-pixels {pixels}, in Python max_pixels={pixels}",
        )


def _open_of_any_size(path: Path | io.BytesIO) -> Image.Image:
    """Pillow's own limit is one number for the whole process: it is put aside while the header is read."""
    with _pillow_limit:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _from_pil(image: Image.Image, source: str) -> np.ndarray:
    """Pixels (h w 3) uint8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.uint16)
    elif image.mode == "I":
        values = _sixteen_bit(np.asarray(image), source)
    elif image.mode == "F":
        values = _checked_floats(np.asarray(image), source)
    else:
        return np.array(image.convert("RGB"))
    return np.repeat(_eight_bit(values)[..., None], 3, axis=-1)


def _sixteen_bit(values: np.ndarray, source: str) -> np.ndarray:
    """32-bit integer pixels as 16-bit ones, which is what files decoded that way hold."""
    if values.size and (values.min() < 0 or values.max() > 65535):
        raise ImageError(source, "32-bit integer pixels beyond 0..65535; convert it to 8 or 16 bit")
    return values.astype(np.uint16)


def _checked_floats(values: np.ndarray, source: str) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # also catches NaN
        raise ImageError(
            source, f"float pixels must lie in [0, 1], not {low:g} .. {high:g}: divide by full scale"
        )
    return values.astype(np.float32)


def _eight_bit(values: np.ndarray) -> np.ndarray:
    """Values of bool, uint8, uint16 or floats in [0, 1] as uint8, rounded."""
    if values.dtype == np.uint8:
        return values
    scale = {np.dtype(np.bool_): 255.0, np.dtype(np.uint16): 255.0 / 65535.0}.get(values.dtype, 255.0)
    return np.rint(values * np.float64(scale)).astype(np.uint8)


def _channels_last(image: Tensor) -> np.ndarray:
    values = image.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    if values.ndim == 3:
        if values.shape[0] not in (1, 3, 4):
            raise ImageError("tensor", f"shape {tuple(values.shape)}: an image is (3 h w), (1 h w) or (h w)")
        values = values.movedim(0, -1)
    return values.numpy()


def _from_array(values: np.ndarray, source: str) -> Tensor:
    """Pixels (3 h w) of values (h w) or (h w channels)."""
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[-1] not in (1, 3, 4) or 0 in values.shape:
        raise ImageError(source, f"shape {values.shape}: an image is (h w), (h w 1), (h w 3) or (h w 4)")
    pixels = torch.from_numpy(np.ascontiguousarray(_plain(values[..., :3], source))).movedim(-1, 0)
    return to_unit_range(pixels).expand(3, -1, -1).contiguous()


def _plain(values: np.ndarray, source: str) -> np.ndarray:
    """Integers as uint8, floats as float32 in [0, 1]."""
    if values.dtype in (np.bool_, np.uint8, np.uint16):
        return _eight_bit(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(source, f"{values.dtype}: pixels are uint8, uint16, bool, or floats in [0, 1]")
    return _checked_floats(values, source)
