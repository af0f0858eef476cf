import os

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.data import reading as data_files
from gmmseg.images import ImageError, load_image, read_image


@pytest.fixture
def colours() -> np.ndarray:
    """A random image (6 9 3) uint8."""
    return np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def pixels_of(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).movedim(-1, 0) / 255


def saved(image: Image.Image, path, **options):
    image.save(path, **options)
    return path


def test_rgb_files_arrays_images_and_tensors_are_one(colours, tmp_path):
    expected = pixels_of(colours)
    image = Image.fromarray(colours)
    tensor = torch.from_numpy(colours).movedim(-1, 0)
    floats = expected.double().movedim(0, -1).numpy()
    for source in (saved(image, tmp_path / "a.png"), image, colours, tensor, expected, floats):
        pixels = load_image(source)
        torch.testing.assert_close(pixels, expected)
        assert pixels.dtype == torch.float32
        assert pixels.is_contiguous()


def test_grey_becomes_three_equal_channels(colours, tmp_path):
    grey = colours[..., 0]
    expected = pixels_of(np.stack([grey] * 3, -1))
    for source in (
        saved(Image.fromarray(grey), tmp_path / "grey.png"),
        grey,
        grey[..., None],
        torch.from_numpy(grey),
    ):
        torch.testing.assert_close(load_image(source), expected)
    bits = grey > 127
    torch.testing.assert_close(load_image(bits), load_image(Image.fromarray(bits)))


def test_alpha_is_dropped_and_the_colours_beneath_kept(colours, tmp_path):
    alpha = np.random.default_rng(1).integers(0, 256, (6, 9, 1), dtype=np.uint8)
    both = np.concatenate([colours, alpha], -1)
    for source in (
        saved(Image.fromarray(both), tmp_path / "a.png"),
        both,
        torch.from_numpy(both).movedim(-1, 0),
    ):
        torch.testing.assert_close(load_image(source), pixels_of(colours))
    grey_alpha = Image.fromarray(both).convert("LA")
    assert load_image(saved(grey_alpha, tmp_path / "la.png")).shape == (3, 6, 9)


def test_palettes_mean_their_colours(tmp_path):
    image = Image.new("P", (4, 2))
    image.putpalette([10, 20, 30, 250, 128, 0])
    image.putpixel((3, 1), 1)
    pixels = load_image(saved(image, tmp_path / "palette.png", transparency=0))
    torch.testing.assert_close(pixels[:, 0, 0] * 255, torch.tensor([10.0, 20.0, 30.0]))
    torch.testing.assert_close(pixels[:, 1, 3] * 255, torch.tensor([250.0, 128.0, 0.0]))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bits_are_scaled_not_cut_off(tmp_path, suffix):
    values = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    expected = torch.from_numpy(np.rint(values / 257) / 255).float()[None].expand(3, -1, -1)
    path = saved(Image.fromarray(values), tmp_path / f"deep.{suffix}")
    for source in (path, values, torch.from_numpy(values), Image.fromarray(values.astype(np.int32))):
        torch.testing.assert_close(load_image(source), expected)


def test_cmyk_is_read_as_pillow_reads_it(colours, tmp_path):
    path = saved(Image.fromarray(colours).convert("CMYK"), tmp_path / "print.tif")
    torch.testing.assert_close(load_image(path), pixels_of(colours), atol=0.02, rtol=0)


@pytest.mark.parametrize(("orientation", "undo"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_exif_rotation_is_applied(tmp_path, orientation, undo):
    values = np.zeros((16, 32, 3), np.uint8)
    values[:8, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(Image.fromarray(values), tmp_path / "turned.png", exif=exif)
    torch.testing.assert_close(load_image(path), pixels_of(np.rot90(values, undo).copy()))


def test_one_pixel_and_8k_wide(tmp_path):
    assert load_image(saved(Image.new("RGB", (1, 1), (255, 0, 0)), tmp_path / "dot.png")).tolist() == [
        [[1.0]],
        [[0.0]],
        [[0.0]],
    ]
    assert load_image(saved(Image.new("L", (8192, 3)), tmp_path / "wide.png")).shape == (3, 3, 8192)


def test_of_an_animation_the_first_frame_is_taken(tmp_path):
    frames = [Image.new("L", (4, 4), 0), Image.new("L", (4, 4), 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "a.gif").max() == 0


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5])
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_cut_off_files_are_refused_by_name(tmp_path, suffix, share):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = saved(Image.fromarray(noise), tmp_path / f"broken.{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ImageError, match=rf"broken\.{suffix}: not a readable image"):
        load_image(path)


def test_files_that_are_no_images_are_refused_by_name(tmp_path):
    (tmp_path / "notes.png").write_text("no image")
    with pytest.raises(ImageError, match=r"notes\.png: not a readable image"):
        load_image(tmp_path / "notes.png")
    with pytest.raises(FileNotFoundError, match=r"gone\.png: no such image file"):
        load_image(tmp_path / "gone.png")


def test_images_beyond_the_limit_are_refused_with_the_way_out(tmp_path, monkeypatch):
    path = saved(Image.new("L", (100, 90)), tmp_path / "bomb.png")
    with pytest.raises(ImageError, match=r"bomb\.png.*9,000 pixels exceed.*8,999.*--max-pixels 9000"):
        load_image(path, max_pixels=8_999)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow's own limit, for others in the process
    assert load_image(path, max_pixels=9_000).shape == (3, 90, 100)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_postscript_by_another_name_starts_no_program(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1))
    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    for read in (load_image, read_image, data_files.read_image, data_files.read_ids):
        with pytest.raises(ValueError, match=r"a\.png"):
            read(tmp_path / "a.png")
    assert not started


def test_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for read in (load_image, data_files.read_image, data_files.read_ids):
        with pytest.raises((OSError, ValueError), match=r"pipe\.png: .*(no such image|no regular) file"):
            read(tmp_path / "pipe.png")


def sixteen_bit(colours):
    return Image.fromarray(colours[..., 0].astype(np.uint16) * 201)


KINDS = {
    "rgb.png": Image.fromarray,
    "grey.png": lambda colours: Image.fromarray(colours[..., 0]),
    "palette.png": lambda colours: Image.fromarray(colours).quantize(7),
    "rgba.png": lambda colours: Image.fromarray(np.dstack([colours, colours[..., 0]])),
    "deep.png": sixteen_bit,
    "deep.tif": sixteen_bit,
    "int.tif": lambda colours: Image.fromarray(colours[..., 0].astype(np.int32) * 257),
    "float.tif": lambda colours: Image.fromarray(colours[..., 1].astype(np.float32) / 300),
    "photo.jpg": Image.fromarray,
}


@pytest.mark.parametrize("name", KINDS)
def test_training_and_prediction_see_the_same_pixels(colours, tmp_path, name):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(KINDS[name](colours), tmp_path / name, exif=exif)
    trained_on = torch.from_numpy(data_files.read_image(path)).movedim(-1, 0).float() / 255
    predicted = load_image(path)
    assert torch.equal(trained_on, predicted)
    assert predicted.shape[1:] == ((9, 6) if name.endswith(("png", "jpg")) else predicted.shape[1:])
    assert 0.2 < predicted.mean() < 0.8, "neither clipped nor dark"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 8, 9), np.uint8), r"shape \(3, 8, 9\)"),
        (np.zeros((2, 8, 9, 3), np.uint8), r"shape \(2, 8, 9, 3\)"),
        (np.zeros((0, 9, 3), np.uint8), r"shape \(0, 9, 3\)"),
        (np.zeros((8, 9, 3), np.int64), "int64: pixels are uint8"),
        (np.full((8, 9, 3), 128.0), r"must lie in \[0, 1\], not 128 .. 128"),
        (np.full((8, 9, 3), np.nan), r"must lie in \[0, 1\]"),
        (torch.zeros(8, 9, 3), r"an image is \(3 h w\)"),
        (torch.full((3, 8, 9), -0.5), r"must lie in \[0, 1\]"),
        (Image.fromarray(np.full((2, 2), 70_000, np.int32)), "beyond 0..65535"),
        (Image.fromarray(np.full((2, 2), 3.5, np.float32)), r"must lie in \[0, 1\]"),
    ],
)
def test_what_is_no_image_is_refused(source, message):
    with pytest.raises(ImageError, match=message):
        load_image(source)


def test_a_number_is_refused_with_what_an_image_may_be():
    with pytest.raises(TypeError, match="a path, a PIL image, an array or a tensor, not int"):
        load_image(3)
