import csv
import json
import os
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.evaluation.score_files import pair_files, read_scores
from gmmseg.inference import Predictor, Work, predict_files
from gmmseg.inference.file_prediction import ImageNotPredicted
from gmmseg.inference.strangest import Strangest
from gmmseg.inference.summary_files import ImageRow
from gmmseg.inference.video import VideoFile, frames

OF_ALL = {"legend.png", "anomaly_scale.png", "summary.csv", "summary.json", "strangest.png"}
"""What is written once, of all images."""


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
    kinds, names = ("labels", "anomaly", "unknown", "overlay"), ("a.png", "a.bmp", "sub/grey")
    assert files_in(summary.out_dir) == {f"{kind}/{name}.png" for kind in kinds for name in names} | OF_ALL
    assert summary.done == 3
    assert [name for name, _ in summary.failed] == ["broken.jpg"]
    assert "not a readable image" in summary.failed[0][1]
    assert [(count, total) for count, total, _ in calls] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [name for _, _, name in calls] == ["a.bmp", "a.png", "broken.jpg", "sub/grey.png"]


class OnlyDark(Predictor):
    """Cannot predict images with a white pixel, as exported files cannot predict images of some sizes."""

    def batch_strips(self, images):
        if bool((images == 1).any()):
            raise ImageNotPredicted("too bright for this model")
        yield from super().batch_strips(images)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_image_that_the_model_cannot_predict_is_reported_and_the_others_are_done(
    segmenter, tmp_path, batch_size
):
    for name, level in {"a": 10, "b": 255, "c": 30}.items():
        Image.new("RGB", (8, 6), (level, 0, 0)).save(tmp_path / f"{name}.png")
    work = Work(batch_size=batch_size, raw=True)
    summary = predict_files(OnlyDark(segmenter), [tmp_path], tmp_path / "out", work)
    assert summary.done == 2
    assert summary.failed == (("b.png", "too bright for this model"),)
    assert {path.name for path in (tmp_path / "out/raw").iterdir()} == {"a.npz", "c.npz"}
    for name, level in {"a": 10, "c": 30}.items():
        alone = Predictor(segmenter).predict(Image.new("RGB", (8, 6), (level, 0, 0)))
        assert np.array_equal(np.load(tmp_path / f"out/raw/{name}.npz")["anomaly"], alone.anomaly.numpy())


def test_what_is_written_is_what_was_predicted(segmenter, calibration, folder, tmp_path):
    segmenter.calibration = calibration(3.0)
    out = tmp_path / "out"
    predict_files(Predictor(segmenter, window=8), [folder / "a.png"], out, Work(raw=True))
    prediction = Predictor(segmenter).predict(folder / "a.png")
    assert np.array_equal(np.asarray(Image.open(out / "labels/a.png")), prediction.labels.numpy())
    unknown = np.asarray(Image.open(out / "unknown/a.png"))
    assert np.array_equal(unknown > 0, prediction.unknown.numpy())
    assert 0 < (unknown > 0).mean() < 1
    for picture in ("overlay/a.png", "anomaly/a.png"):
        with Image.open(out / picture) as opened:
            assert opened.size == (20, 12), "can be laid over the photograph"
    arrays = np.load(out / "raw/a.npz", allow_pickle=False)
    assert set(arrays) == {"labels", "posterior", "anomaly"}
    for name in arrays:
        torch.testing.assert_close(torch.from_numpy(arrays[name]), getattr(prediction, name))


def test_p_values_and_large_regions_alone_are_written(segmenter, promised, folder, tmp_path):
    segmenter.calibration = promised(min_area=6)
    out = tmp_path / "out"
    predict_files(Predictor(segmenter, window=8), [folder / "a.png"], out, Work(raw=True))
    prediction = Predictor(segmenter).predict(folder / "a.png")
    arrays = np.load(out / "raw/a.npz", allow_pickle=False)
    assert np.array_equal(arrays["p_values"], segmenter.calibration.p_values(prediction.anomaly))
    unknown = np.asarray(Image.open(out / "unknown/a.png")) > 0
    assert np.array_equal(unknown, prediction.unknown.numpy())
    assert 0 < unknown.sum() < (prediction.anomaly > prediction.threshold).sum()


def test_without_a_threshold_nothing_is_called_unknown(segmenter, folder, tmp_path):
    segmenter.colours = None
    predict_files(Predictor(segmenter), [folder / "a.png"], tmp_path / "out")
    kinds = {path.name for path in (tmp_path / "out").iterdir()}
    assert kinds == {"labels", "overlay", "anomaly", *OF_ALL}


def test_a_video_becomes_one_picture_per_frame(segmenter, video, tmp_path):
    calls = []
    summary = predict_files(
        Predictor(segmenter), [video], tmp_path / "out", progress=lambda *call: calls.append(call)
    )
    assert summary.done == 5
    assert {path.name for path in (tmp_path / "out/labels/clip").iterdir()} == {
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
    stem = "x" * 251
    for suffix in ("png", "bmp"):  # that both have outputs, their suffixes stay in the names
        (folder / f"a.{suffix}").rename(folder / f"{stem}.{suffix}")
    summary = predict_files(Predictor(segmenter), [folder], tmp_path / "out")
    assert summary.done == 1
    failed = dict(summary.failed)
    long = {f"{stem}.png", f"{stem}.bmp"}
    assert set(failed) == {"dangling.png", "loop.png", "pipe.png", "pipe.mp4", *long}
    assert all("name leaves no room" in failed[name] for name in long)
    assert all("no such" in failed[name] for name in set(failed) - long)


def test_a_folder_without_images_is_refused(segmenter, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images or videos in .*empty"):
        predict_files(Predictor(segmenter), [tmp_path / "empty"], tmp_path / "out")


def test_two_inputs_that_differ_in_their_suffix_alone_both_have_outputs(segmenter, folder, tmp_path):
    predict_files(Predictor(segmenter), [folder / "a.png", folder / "a.bmp"], tmp_path / "out")
    assert {path.name for path in (tmp_path / "out/labels").iterdir()} == {"a.png.png", "a.bmp.png"}
    first, second = (np.asarray(Image.open(tmp_path / f"out/labels/a.{kind}.png")) for kind in ("png", "bmp"))
    assert np.array_equal(first, second[:, ::-1])
    assert not np.array_equal(first, second)


def test_the_summary_has_a_line_for_each_image(segmenter, calibration, folder, tmp_path):
    segmenter.calibration = calibration(3.0)
    predict_files(Predictor(segmenter), [folder], tmp_path / "out")
    with (tmp_path / "out/summary.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    tree = json.loads((tmp_path / "out/summary.json").read_text())
    names = ["a.bmp", "a.png", "sub/grey.png"]
    assert [line["name"] for line in table] == [image["name"] for image in tree["images"]] == names
    assert (tree["score"], tree["threshold"], tree["classes"]) == ("nll", 3.0, ["red", "green", "blue"])
    assert [each["name"] for each in tree["failed"]] == ["broken.jpg"]
    for line, image in zip(table, tree["images"]):
        found = Predictor(segmenter).predict(folder / image["name"])
        assert image["unknown_share"] == float(line["unknown_share"]) == found.unknown.numpy().mean()
        assert (
            image["largest_score"]
            == float(line["largest_score"])
            == pytest.approx(float(found.anomaly.max()))
        )
        counts = torch.bincount(found.labels.flatten().long(), minlength=3)
        shares = dict(zip(tree["classes"], (counts / counts.sum()).tolist()))
        assert image["classes"] == pytest.approx({name: s for name, s in shares.items() if s > 0}, abs=1e-5)
        assert line["classes"].split(";") == sorted(
            image["classes"], key=lambda name: -image["classes"][name]
        )
        assert image["seconds"] > 0
        assert (tmp_path / "out/labels" / f"{image['output']}.png").is_file()


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_batches_change_nothing(segmenter, calibration, folder, video, tmp_path, batch_size):
    segmenter.calibration = calibration(3.0)
    given = [folder, video]
    predict_files(Predictor(segmenter), given, tmp_path / "one", Work(raw=True))
    summary = predict_files(
        Predictor(segmenter), given, tmp_path / "many", Work(raw=True, batch_size=batch_size)
    )
    assert (summary.done, len(summary.failed)) == (8, 1)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "many")
    for path in sorted((tmp_path / "one/raw").rglob("*.npz")):
        other = tmp_path / "many" / path.relative_to(tmp_path / "one")
        with np.load(path) as ours, np.load(other) as theirs:
            for name in ours:
                np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5)


def test_a_video_becomes_videos_of_every_nth_frame(segmenter, calibration, make_video, tmp_path):
    av = pytest.importorskip("av")
    segmenter.calibration = calibration(3.0)
    path = make_video(tmp_path / "clip.mkv", frames=11)
    summary = predict_files(Predictor(segmenter), [path], tmp_path / "out", Work(every=4))
    assert summary.done == 3
    for kind in ("overlay", "anomaly"):
        with av.open(str(tmp_path / f"out/{kind}/clip.mp4")) as container:
            stream = container.streams.video[0]
            assert (stream.width, stream.height) == (48, 32)
            assert stream.average_rate == Fraction(5, 4), "as long as the original"
            written = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert len(written) == 3
    for kind in ("labels", "unknown"):
        names = {each.name for each in (tmp_path / f"out/{kind}/clip").iterdir()}
        assert names == {"000000.png", "000004.png", "000008.png"}
    # The last frame of the video of heat maps is that of the prediction, but for compression.
    _, pixels = list(frames(path, every=4))[-1]
    wanted = np.asarray(Predictor(segmenter).predict(pixels).heat_map())
    assert np.abs(written[-1].astype(int) - wanted).mean() < 12


@pytest.mark.parametrize("heavy", [True, False])
def test_large_posteriors_do_not_wait_in_memory(segmenter, video, tmp_path, monkeypatch, heavy):
    pytest.importorskip("av")
    seen, predictor = [], Predictor(segmenter)
    strips = predictor.batch_strips
    monkeypatch.setattr(predictor, "batch_strips", lambda images: (seen.append("network"), strips(images))[1])
    module = sys.modules["gmmseg.inference.predict_files"]  # the function has its name
    monkeypatch.setattr(module, "HEAVY", 0 if heavy else 1 << 24)
    predict_files(predictor, [video], tmp_path, Work(raw=True), progress=lambda *call: seen.append("written"))
    assert (seen == ["network", "written"] * 5) == heavy
    assert sorted(seen) == ["network"] * 5 + ["written"] * 5


def test_a_prediction_that_ends_within_a_video_leaves_no_part_of_it(segmenter, video, tmp_path):
    pytest.importorskip("av")

    def stop(done, total, name):
        if done == 3:
            raise OSError("stopped")

    with pytest.raises(OSError, match=r"^stopped$"):
        predict_files(Predictor(segmenter), [video], tmp_path / "out", progress=stop)
    left = {path.name for kind in ("overlay", "anomaly") for path in (tmp_path / "out" / kind).iterdir()}
    assert left == set()


def test_a_video_of_odd_size_keeps_its_pixels(segmenter, tmp_path):
    pytest.importorskip("av")
    picture = Image.fromarray(np.full((33, 47, 3), (250, 10, 10), np.uint8))
    film = VideoFile(tmp_path / "red.mp4", Fraction(5))
    assert not (tmp_path / "red.mp4").exists(), "not before it is whole"
    for _ in range(3):
        film.add(picture)
    film.close()
    found = [frame for _, frame in frames(tmp_path / "red.mp4")]
    assert [frame.shape for frame in found] == [(34, 48, 3)] * 3
    assert np.abs(found[0][:33, :47].astype(int) - (250, 10, 10)).max() < 12


def test_the_strangest_images_are_on_the_sheet_whoever_saw_them_first(segmenter, calibration, tmp_path):
    segmenter.calibration = calibration(3.0)
    tiles = []
    for order in (1, -1):
        kept = Strangest()
        for place in range(30)[::order]:
            row = ImageRow(f"{place:02d}.png", f"{place:02d}", 8, 8, place % 7 / 10, 5.0, {}, 0.1)
            kept.add(row, dict.fromkeys(("overlay", "anomaly"), Image.new("RGB", (8, 8))), None)
        tiles.append([tile.row.name for tile in kept._tiles])
    assert tiles[0] == tiles[1]
    wanted = sorted(range(30), key=lambda place: (-(place % 7), place))[:12]
    assert tiles[0] == [f"{place:02d}.png" for place in wanted]
    video = Strangest()
    for frame in (3, 50, 150, 99):
        row = ImageRow(f"clip.mp4/{frame:06d}", "", 8, 8, frame / 1000, 5.0, {}, 0.1)
        video.add(row, dict.fromkeys(("overlay", "anomaly"), Image.new("RGB", (8, 8))), frame)
    assert [tile.row.name for tile in video._tiles] == ["clip.mp4/000150", "clip.mp4/000099"]


def test_another_threshold_and_another_score(segmenter, calibration, folder, tmp_path):
    segmenter.calibration = calibration(3.0)
    image, out = folder / "a.png", tmp_path / "out"
    predict_files(Predictor(segmenter), [image], out, Work(threshold=5.0))
    unknown = np.asarray(Image.open(out / "unknown/a.png")) > 0
    assert np.array_equal(unknown, Predictor(segmenter).predict(image).above(5.0).numpy())
    assert json.loads((out / "summary.json").read_text())["promise"] is None
    predict_files(Predictor(segmenter, score="msp"), [image], tmp_path / "msp")
    assert not (tmp_path / "msp/unknown").exists(), "the threshold is that of another score"
    assert json.loads((tmp_path / "msp/summary.json").read_text())["score"] == "msp"


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"every": 0}, {"every": -3}])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least 1"):
        Work(**wrong)


def test_a_threshold_that_is_no_number_and_an_output_folder_among_the_images_are_refused(segmenter, folder):
    with pytest.raises(ValueError, match="a threshold is a finite number, got nan"):
        predict_files(Predictor(segmenter), [folder], folder / "out", Work(threshold=float("nan")))
    with pytest.raises(ValueError, match="would be written among the images"):
        predict_files(Predictor(segmenter), [folder], folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.bmp", "a.png", "broken.jpg", "sub"]


def test_raw_values_and_masks_pair_up_for_score(segmenter, folder, tmp_path):
    """What `gmmseg predict --raw` writes is what `gmmseg score` reads."""
    predict_files(Predictor(segmenter), [folder / "a.png"], tmp_path / "out", Work(raw=True))
    ((name, scores, mask),) = pair_files(tmp_path / "out/raw", tmp_path / "out/labels")
    assert (name, mask.name) == ("a", "a.png")
    assert np.array_equal(read_scores(scores), Predictor(segmenter).predict(folder / "a.png").anomaly)
