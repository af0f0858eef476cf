import sys

import numpy as np
import pytest

from gmmseg.images import ImageError
from gmmseg.inference.video import frame_count, frames


def test_frames_come_back_in_order(video):
    numbered = list(frames(video))
    assert [number for number, _ in numbered] == list(range(5))
    values = [frame for _, frame in numbered]
    assert len(values) == frame_count(video) == 5
    assert all(frame.shape == (32, 48, 3) for frame in values)
    brightness = [frame.mean() for frame in values]
    np.testing.assert_allclose(brightness, [0, 50, 100, 150, 200], atol=8)


def test_broken_videos_are_refused_by_name(video, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(video.read_bytes()[:300])
    with pytest.raises(ImageError, match=r"broken\.mp4: (not a readable|holds no) video"):
        list(frames(broken))
    assert frame_count(broken) is None


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"clip\.mp4 is a video.*gmmseg\[video\]"):
        next(frames(tmp_path / "clip.mp4"))
