"""Frames of a video, through PyAV."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gmmseg.inference.images import ImageError

VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv"})


def frames(path: Path) -> Iterator[np.ndarray]:
    """The frames of a video one after the other, each (h w 3) uint8 RGB, turned upright."""
    av = _pyav(path)
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(_stream(container, path)):
                turns = round(getattr(frame, "rotation", 0) / 90)  # older PyAV does not tell
                yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
    except av.FFmpegError as error:
        raise ImageError(f"{path}: not a readable video, broken or cut off ({error})") from error


def frame_count(path: Path) -> int | None:
    """How many frames the file says it has; None where it does not say."""
    av = _pyav(path)
    try:
        with av.open(str(path)) as container:
            return _stream(container, path).frames or None
    except (av.FFmpegError, ImageError):
        return None


def _stream(container, path: Path):
    if not container.streams.video:
        raise ImageError(f"{path}: holds no video")
    return container.streams.video[0]


def _pyav(path: Path):
    try:
        import av
    except ImportError as error:
        raise ImportError(f"{path} is a video: reading it needs PyAV, pip install 'gmmseg[video]'") from error
    return av
