"""An exported model without torch and without gmmseg: numpy, Pillow and onnxruntime alone.

    gmmseg export RUN --out model.onnx
    python examples/onnx_runtime.py model.onnx photo.jpg [--threshold 12.5]

Writes photo_overlay.png, the image under the colours of its classes with unknown pixels in white, and
photo_unknown.png, a mask with 255 where the anomaly score is above the threshold.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--threshold", type=float, help="in place of the calibrated one")
    options = parser.parse_args()

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # it would warn of the threshold's default
    session = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    classes, colours = about["gmmseg.classes"], np.array(about["gmmseg.colours"], dtype=np.uint8)

    pixels = np.asarray(Image.open(options.image).convert("RGB"))
    given = {"images": (pixels.astype(np.float32) / 255).transpose(2, 0, 1)[None]}  # (1 3 h w), RGB in [0, 1]
    if options.threshold is not None:
        given["threshold"] = np.array(options.threshold, dtype=np.float32)
    names = ["labels", "confidence", "anomaly", "unknown"]
    labels, confidence, anomaly, unknown = (output[0] for output in session.run(names, given))

    overlay = (pixels * 0.5 + colours[labels] * 0.5).round().astype(np.uint8)
    overlay[unknown] = 255
    stem = options.image.with_suffix("")
    Image.fromarray(overlay).save(f"{stem}_overlay.png")
    Image.fromarray(unknown.astype(np.uint8) * 255).save(f"{stem}_unknown.png")
    for index in np.unique(labels):
        here = labels == index
        print(f"{classes[index]:20} {here.mean():6.1%} of pixels, confidence {confidence[here].mean():.2f}")
    print(
        f"anomaly from {anomaly.min():.3g} to {anomaly.max():.3g}; {unknown.mean():.1%} of the pixels unknown"
    )


if __name__ == "__main__":
    main()
