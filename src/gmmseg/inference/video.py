"""Frames of a video, and videos of pictures, through PyAV."""

from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gmmseg.atomic import written
from gmmseg.images import MAX_PIXELS, ImageError, check_pixels

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv"})
PRESENT = 0.9
"""A video with less than this share of what its header promises is cut off."""


def frames(
    path: Path, *, max_pixels: int = MAX_PIXELS, every: int = 1
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The frames of a video, or one in ``every``: number and pixels (h w 3) uint8 RGB, turned upright.

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
                if seen % every == 0:
                    yield seen, _upright(frame)
                seen, end = seen + 1, max(end, (frame.time or 0.0) + _seconds_per_frame(stream))
            promised, seconds = stream.frames, (container.duration or 0) / av.time_base
    except av.FFmpegError as error:
        raise _unreadable(path, f"broken or cut off ({error})") from error
    if seen == 0:
        raise _unreadable(path, "broken or cut off (not one frame can be decoded)")
    # Headers are not exact to the frame, and sound may go on for longer.
    if seen < PRESENT * promised - 1 or end < PRESENT * seconds:
        raise _unreadable(path, f"cut off after {seen} frames, {end:.1f} of {seconds:.1f} seconds")


def _upright(frame: "VideoFrame") -> NDArray[np.uint8]:
    turns = round(getattr(frame, "rotation", 0) / 90)  # older PyAV does not tell
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))


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


def frame_rate(path: Path) -> Fraction:
    """Frames per second; 25 where the file does not say."""
    av = _pyav(path)
    try:
        with av.open(str(path)) as container:
            return Fraction(_stream(container, path).average_rate or 25)
    except (av.FFmpegError, ImageError):
        return Fraction(25)


class VideoFile:
    """An MP4 file that takes its place at ``path`` when it is closed; H.264 where PyAV has it."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        self._rate = rate.limit_denominator(1000)
        self._stream: VideoStream | None = None
        self._av = _pyav(path)
        self._stack = ExitStack()
        file = self._stack.enter_context(written(path))
        self._container = self._stack.enter_context(self._av.open(file, "w", format="mp4"))

    def add(self, picture: Image.Image) -> None:
        """One more frame; it has the size of the first, one pixel more where that is odd."""
        if self._stream is None:
            self._stream = self._container.add_stream(_encoder(self._av), rate=self._rate)
            self._stream.width, self._stream.height = (side + side % 2 for side in picture.size)
            self._stream.pix_fmt = "yuv420p"
        size = (self._stream.width, self._stream.height)
        even = Image.fromarray(_even(np.asarray(picture.convert("RGB"))))
        fitting = even if even.size == size else even.resize(size)
        self._container.mux(self._stream.encode(self._av.VideoFrame.from_image(fitting)))

    def close(self) -> None:
        """Write what is left; the file is then in its place."""
        with self._stack:
            if self._stream is not None:
                self._container.mux(self._stream.encode())

    def discard(self) -> None:
        """Leave nothing: a part of a video looks like a whole one."""
        self._stack.__exit__(_Discarded, _Discarded(), None)


class _Discarded(BaseException):
    """Not an error, so that nobody takes it for one of the file."""


def _even(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (h w 3) with the last row and column twice where their number is odd, as codecs want it."""
    height, width, _ = pixels.shape
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _encoder(av: ModuleType) -> str:
    return "libx264" if "libx264" in av.codecs_available else "mpeg4"


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
