"""Frames of a video, through PyAV."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gmmseg.images import MAX_PIXELS, ImageError, check_pixels

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv"})
PRESENT = 0.9
"""A video with less than this share of what its header promises is cut off."""


def frames(path: Path, *, max_pixels: int = MAX_PIXELS) -> Iterator[NDArray[np.uint8]]:
    """The frames of a video one after the other, each (h w 3) uint8 RGB, turned upright.

    Frames of more than ``max_pixels`` are an ImageError, and so is, after the frames there are, a video that
    ends before its header says.
    """
    av = _pyav(path)
    _check_file(path)
    seen, end = 0, 0.0
    try:
        with av.open(str(path)) as container:
            stream = _stream(container, path)
            check_pixels(path, (stream.width, stream.height), max_pixels, kind="video")
            for frame in container.decode(stream):
                check_pixels(path, (frame.width, frame.height), max_pixels, kind="video")
                turns = round(getattr(frame, "rotation", 0) / 90)  # older PyAV does not tell
                yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
                seen, end = seen + 1, max(end, (frame.time or 0.0) + _seconds_per_frame(stream))
            promised, seconds = stream.frames, (container.duration or 0) / av.time_base
    except av.FFmpegError as error:
        raise _unreadable(path, f"broken or cut off ({error})") from error
    if seen == 0:
        raise _unreadable(path, "broken or cut off (not one frame can be decoded)")
    # Headers are not exact to the frame, and sound may go on for longer.
    if seen < PRESENT * promised - 1 or end < PRESENT * seconds:
        raise _unreadable(path, f"cut off after {seen} frames, {end:.1f} of {seconds:.1f} seconds")


def frame_count(path: Path) -> int | None:
    """How many frames the file says it has; None where it does not say."""
    av = _pyav(path)
    if not path.is_file():
        return None
    try:
        with av.open(str(path)) as container:
            return _stream(container, path).frames or None
    except (av.FFmpegError, ImageError):
        return None


def _check_file(path: Path) -> None:
    """Refuse pipes and devices: opening one could wait for ever."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such video file")


def _stream(container: "InputContainer", path: Path) -> "VideoStream":
    if not container.streams.video:
        raise _unreadable(path, "it holds no video")
    return container.streams.video[0]


def _seconds_per_frame(stream: "VideoStream") -> float:
    return float(1 / stream.average_rate) if stream.average_rate else 0.0


def _unreadable(path: Path, reason: str) -> ImageError:
    return ImageError(path, reason, kind="video")


def _pyav(path: Path) -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise ImportError(f"{path} is a video: reading it needs PyAV, pip install 'gmmseg[video]'") from error
    return av
