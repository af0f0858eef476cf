import os

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.inference import Predictor, predict_files


@pytest.fixture
def folder(tmp_path):
    """Three readable images (two of one stem, one deeper down) and a broken one."""
    root = tmp_path / "photos"
    (root / "sub").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "a.png")
    Image.fromarray(noise[:, ::-1].copy()).save(root / "a.bmp")
    Image.fromarray(noise[..., 0]).save(root / "sub" / "grey.png")
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return root


def files_in(root) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_folder_becomes_pictures_and_the_broken_file_is_reported(segmenter, calibration, folder, tmp_path):
    segmenter.calibration = calibration(3.0)
    calls = []
    summary = predict_files(
        Predictor(segmenter), [folder], tmp_path / "out", progress=lambda *call: calls.append(call)
    )
    names = ("a.png", "a.bmp", "sub/grey.png")
    assert files_in(summary.out_dir) == (
        {f"{kind}/{name}.png" for kind in ("labels", "anomaly", "unknown") for name in names}
        | {f"overlay/{name}.jpg" for name in names}
        | {"legend.png", "anomaly_scale.png"}
    )
    assert summary.done == 3
    assert [name for name, _ in summary.failed] == ["broken.jpg"]
    assert "not a readable image" in summary.failed[0][1]
    assert [(count, total) for count, total, _ in calls] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [name for _, _, name in calls] == ["a.bmp", "a.png", "broken.jpg", "sub/grey.png"]


def test_what_is_written_is_what_was_predicted(segmenter, calibration, folder, tmp_path):
    segmenter.calibration = calibration(3.0)
    out = tmp_path / "out"
    predict_files(Predictor(segmenter, window=8), [folder / "a.png"], out, raw=True)
    prediction = Predictor(segmenter).predict(folder / "a.png")
    assert np.array_equal(np.asarray(Image.open(out / "labels/a.png.png")), prediction.labels.numpy())
    unknown = np.asarray(Image.open(out / "unknown/a.png.png"))
    assert np.array_equal(unknown > 0, prediction.unknown.numpy())
    assert 0 < (unknown > 0).mean() < 1
    for picture in ("overlay/a.png.jpg", "anomaly/a.png.png"):
        with Image.open(out / picture) as opened:
            assert opened.size == (20, 12), "can be laid over the photograph"
    arrays = np.load(out / "raw/a.png.npz", allow_pickle=False)
    assert set(arrays) == {"labels", "posterior", "anomaly"}
    for name in arrays:
        torch.testing.assert_close(torch.from_numpy(arrays[name]), getattr(prediction, name))


def test_p_values_and_large_regions_alone_are_written(segmenter, promised, folder, tmp_path):
    segmenter.calibration = promised(min_area=6)
    out = tmp_path / "out"
    predict_files(Predictor(segmenter, window=8), [folder / "a.png"], out, raw=True)
    prediction = Predictor(segmenter).predict(folder / "a.png")
    arrays = np.load(out / "raw/a.png.npz", allow_pickle=False)
    assert np.array_equal(arrays["p_values"], segmenter.calibration.p_values(prediction.anomaly))
    unknown = np.asarray(Image.open(out / "unknown/a.png.png")) > 0
    assert np.array_equal(unknown, prediction.unknown.numpy())
    assert 0 < unknown.sum() < (prediction.anomaly > prediction.threshold).sum()


def test_without_a_threshold_nothing_is_called_unknown(segmenter, folder, tmp_path):
    segmenter.colours = None
    predict_files(Predictor(segmenter), [folder / "a.png"], tmp_path / "out")
    kinds = {path.name for path in (tmp_path / "out").iterdir()}
    assert kinds == {"labels", "overlay", "anomaly", "legend.png", "anomaly_scale.png"}


def test_a_video_becomes_one_picture_per_frame(segmenter, video, tmp_path):
    calls = []
    summary = predict_files(
        Predictor(segmenter), [video], tmp_path / "out", progress=lambda *call: calls.append(call)
    )
    assert summary.done == 5
    assert {path.name for path in (tmp_path / "out/labels/clip.mp4").iterdir()} == {
        f"{index:06d}.png" for index in range(5)
    }
    assert calls[-1] == (5, 5, "clip.mp4/000004")


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("suffix", ["mkv", "avi"])
def test_a_video_that_is_cut_off_is_a_failure(segmenter, tmp_path, make_video, suffix, share):
    path = make_video(tmp_path / f"clip.{suffix}", frames=40)
    assert predict_files(Predictor(segmenter), [path], tmp_path / "all").failed == ()
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    summary = predict_files(Predictor(segmenter), [path], tmp_path / "out")
    assert summary.done < 40
    ((name, reason),) = summary.failed
    assert name == f"clip.{suffix}"
    assert "cut off" in reason


def test_the_limit_of_pixels_holds_for_the_frames_of_a_video(segmenter, video, tmp_path):
    refused = predict_files(Predictor(segmenter, max_pixels=32 * 48 - 1), [video], tmp_path / "none")
    assert refused.done == 0
    ((_, reason),) = refused.failed
    assert "not a readable video, its 48x32 = 1,536 pixels exceed the limit of 1,535" in reason
    assert predict_files(Predictor(segmenter, max_pixels=32 * 48), [video], tmp_path / "all").done == 5


def test_odd_directory_entries_are_listed_and_the_rest_is_done(segmenter, folder, tmp_path):
    (folder / "broken.jpg").unlink()
    (folder / "dangling.png").symlink_to(folder / "gone.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "pipe.mp4")
    long = "x" * 251 + ".png"
    (folder / "a.png").rename(folder / long)
    summary = predict_files(Predictor(segmenter), [folder], tmp_path / "out")
    assert summary.done == 2
    failed = dict(summary.failed)
    assert set(failed) == {"dangling.png", "loop.png", "pipe.png", "pipe.mp4", long}
    assert "name leaves no room" in failed[long]
    assert all("no such" in failed[name] for name in set(failed) - {long})


def test_a_folder_without_images_is_refused(segmenter, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images or videos in .*empty"):
        predict_files(Predictor(segmenter), [tmp_path / "empty"], tmp_path / "out")
