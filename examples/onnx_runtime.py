"""An exported model without torch and without gmmseg: numpy, Pillow and onnxruntime alone.
    python examples/onnx_runtime.py model.onnx photo.jpg [--threshold 12.5]
Writes photo_labels.png (indices of classes), photo_overlay.png (unknown pixels white), photo_unknown.png."""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def resized(planes: np.ndarray, size: tuple[int, int], *, antialias: bool = False) -> np.ndarray:
    """Planes (n h w) at another size (height, width), bilinear."""
    steps = (planes.shape[2] / size[1], 0, 0, 0, planes.shape[1] / size[0], 0)
    how = (size[::-1], Image.Transform.AFFINE, steps, Image.Resampling.BILINEAR)
    images = [Image.fromarray(plane.astype(np.float32)) for plane in planes]
    return np.stack([each.resize(how[0], how[3]) if antialias else each.transform(*how) for each in images])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("image", type=pathlib.Path)
    parser.add_argument("--threshold", type=float, help="in place of the calibrated one")
    given = parser.parse_args()
    if not np.isfinite(given.threshold or 0):
        parser.error(f"--threshold is a finite number, got {given.threshold}")
    onnxruntime.set_default_logger_severity(3)  # it would warn of the threshold's default
    session = onnxruntime.InferenceSession(given.model, providers=["CPUExecutionProvider"])
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    image = ImageOps.exif_transpose(Image.open(given.image))
    if scale := {"I": 1 / 257, "F": 255}.get(image.mode[0]):  # 16 bit, and floats in [0, 1]
        image = image.convert(image.mode[0]).point(lambda level: level * scale + 0.5)
    pixels = np.asarray(image.convert("RGB"))
    planes, size = pixels.transpose(2, 0, 1).astype(np.float32) / 255, pixels.shape[:2]  # RGB in [0, 1]
    if (short := about["gmmseg.short_side"]) and short != min(size):  # how validation looked at images
        factor = min(short / min(size), max(1, 8 * short / max(size)))  # no strip becomes a giant
        planes = resized(planes, tuple(max(1, round(side * factor)) for side in size), antialias=True)
    names, outputs = session.get_outputs(), session.run(None, {"images": planes[None]})
    found = {each.name: output[0] for each, output in zip(names, outputs)}
    anomaly, confidence = resized(np.stack([found["anomaly"], found["confidence"]]), size)
    nearest = [((np.arange(new) + 0.5) * old / new).astype(int) for old, new in zip(planes.shape[1:], size)]
    labels = found["labels"][np.ix_(*nearest)]
    if "posterior" in found and planes.shape[1:] != size:
        labels = resized(np.log(found["posterior"].clip(1.2e-38)), size).argmax(0)
    unknown = anomaly > next(t for t in (given.threshold, about["gmmseg.threshold"], np.inf) if t is not None)
    overlay = ((pixels + np.array(about["gmmseg.colours"])[labels]) / 2).round()
    overlay[unknown] = 255
    for name, picture in {"overlay": overlay, "labels": labels, "unknown": unknown * 255}.items():
        Image.fromarray(picture.astype(np.uint8)).save(f"{given.image.with_suffix('')}_{name}.png")
    for index in np.unique(labels):
        name, mine = about["gmmseg.classes"][index], labels == index
        print(f"{name:20} {mine.mean():6.1%} of pixels, confidence {confidence[mine].mean():.2f}")
    print(f"{unknown.mean():.1%} of the pixels unknown; anomaly {anomaly.min():.3g} to {anomaly.max():.3g}")


main()
