"""Why is this pixel what it is? A page with evidence, component and training pixels.

    python examples/explain.py [--model RUN] [--out explain_example]

Without a model, mixtures are fitted on the features of a network that was never trained, in seconds. With one
it should know the built-in scenes' classes. The strangest pixel of a scene with unknown things is explained.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import gmmseg
from gmmseg import run
from gmmseg.data import Scenes, ScenesAnomaly
from gmmseg.inference import Explanation, Predictor, calibrate


def fitted(folder: Path) -> Path:
    """Weights of a model of the scenes' classes, calibrated."""
    train, val = Scenes("train", length=20), Scenes("val", length=20)
    network = gmmseg.build("tiny_unet", class_names=train.label_space.names, head="softmax")
    network.label_names = train.label_space.names
    model, _ = run.fit_head(network.eval(), train, 2, passes=3)
    model.calibration = calibrate(Predictor(model), val)
    model.save_pretrained(folder)
    return folder


def main(words: Sequence[str] | None = None) -> Explanation:
    """Write the page; returns what it shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="run folder or folder of weights")
    parser.add_argument("--out", type=Path, default=Path("explain_example"))
    arguments = parser.parse_args(words)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    source = arguments.model or fitted(out / "weights")
    model = run.open_model(source)

    run.build_exemplars(source, model, Scenes("train", length=20))  # once for each model
    scene = ScenesAnomaly("test")[0]
    photograph = out / "scene.png"
    Image.fromarray(scene.image.permute(1, 2, 0).numpy()).save(photograph)
    anomaly = Predictor(model).predict(photograph).anomaly
    y, x = divmod(int(anomaly.argmax()), anomaly.shape[1])
    explained, _ = run.write_explanation(source, photograph, (x, y), out / "explain.html")
    print(f"pixel {x},{y}: {explained.names[explained.label]}, p-value {explained.p_value}")
    print(f"{len(explained.exemplars)} training pixels of its component are in {out / 'explain.html'}")
    return explained


if __name__ == "__main__":
    main()
