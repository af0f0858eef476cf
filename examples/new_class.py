"""See it, name it, know it: a model that never saw a car learns cars from a few images, without training.

    python examples/new_class.py [--steps 350] [--images 5] [--out new_class_example]

Trains on the built-in scenes with cars withheld (a minute or two on an idle core; fewer steps are quicker and
see less), then: *see* - unknown masks of five images; *name* - the cars among them, as masks; *know* - the
class is added, judged, and one of its pixels is explained. Prints what the new class takes from the others.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.data.class_masks import open_class_masks
from gmmseg.evaluation.class_gain import ClassGain
from gmmseg.inference import Predictor, calibrate, predict_files

CLASS = "car"


def write_images(folder: Path, count: int) -> list[int]:
    """Write training scenes with cars as image files; returns which they are."""
    scenes = open_dataset("scenes", None, "train")
    label = scenes.label_space.names.index(CLASS)
    chosen = [index for index in range(100) if int((scenes.labels(index) == label).sum()) > 100][:count]
    folder.mkdir(parents=True, exist_ok=True)
    for index in chosen:
        Image.fromarray(scenes[index].image.permute(1, 2, 0).numpy()).save(folder / f"{index}.png")
    return chosen


def write_masks(folder: Path, indices: list[int]) -> None:
    """What a person would draw: 1 where a car is. Here the scenes themselves know."""
    scenes = open_dataset("scenes", None, "train")
    label = scenes.label_space.names.index(CLASS)
    folder.mkdir(parents=True, exist_ok=True)
    for index in indices:
        Image.fromarray((scenes.labels(index) == label).numpy().astype(np.uint8)).save(
            folder / f"{index}.png"
        )


def main(steps: int = 350, images: int = 5, out: Path = Path("new_class_example")) -> ClassGain:
    """All three steps; returns what the new class takes from the others on the validation scenes."""
    config = load_config("scenes", [f"data.held_out=[{CLASS}]", f"train.steps={steps}"])
    run.train(config, out / "run", cpu=True)
    model = run.open_model(out / "run")

    indices = write_images(out / "images", images)
    predict_files(Predictor(model), [out / "images"], out / "seen")
    print(f"see:  what {model.num_classes} classes do not explain is marked in {out / 'seen' / 'unknown'}")

    write_masks(out / "masks", indices)
    masks = open_class_masks(out / "images", out / "masks")
    print(f"name: {len(masks)} images with {CLASS} masks")

    validation = open_dataset("scenes", None, "val")
    added = run.add_class(model, CLASS, masks, validation=validation)
    known = run.matched_classes(validation, added.segmenter.label_names or ())
    added.segmenter.calibration = calibrate(Predictor(added.segmenter), known)
    added.segmenter.save_pretrained(out / "with_class")
    assert added.gain is not None
    print(
        f"know: IoU of {CLASS} {100 * added.gain.new_iou:.1f}, others lose {100 * added.gain.lost:.2f} points"
    )

    image = out / "images" / f"{indices[0]}.png"
    y, x = torch.nonzero(masks[0].labels == 1)[0].tolist()
    explained, _ = run.write_explanation(out / "with_class", image, (x, y), out / "explain.html")
    print(f"pixel {x},{y} is called {explained.names[explained.label]}: {out / 'explain.html'} says why")
    return added.gain


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("new_class_example"))
    main(**vars(parser.parse_args()))
