"""From unknown pixels to objects, and from accepted objects to a new class, without a mask drawn by hand.

    python examples/objects.py [--model RUN] [--out objects_example]

Without a model, mixtures of all classes but cars are fitted on the features of a network that was never
trained, in seconds: it sees little, but every step is there. Give a model that was trained without cars
(`gmmseg train scenes data.held_out=[car]`) for one that sees them. Of the objects found in eight scenes,
those that are mostly car are accepted (a person would look at the boxes; here the scenes know), and the class
is added.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import gmmseg
from gmmseg import run
from gmmseg.data import Scenes
from gmmseg.data.accepted_regions import AcceptedRegions
from gmmseg.data.held_out import WithoutClasses
from gmmseg.inference import ObjectFiles, Predictor, calibrate, predict_files

CLASS, IMAGES = "car", 8


def fitted() -> gmmseg.Segmenter:
    """A calibrated model of the scenes' classes without cars."""
    train, val = (WithoutClasses(Scenes(split, length=20), (CLASS,)) for split in ("train", "val"))
    network = gmmseg.build("tiny_unet", class_names=train.label_space.names, head="softmax")
    network.label_names = train.label_space.names
    model, _ = run.fit_head(network.eval(), train, 3, passes=5)
    model.calibration = calibrate(Predictor(model), val)
    return model


def accepted_ids(objects: Path, images: Path, scenes: Scenes) -> list[int]:
    """Ids of the objects that are mostly car."""
    label = scenes.label_space.names.index(CLASS)
    ids = [each["id"] for each in json.loads(objects.read_text())["annotations"]]
    found = []
    for each in ids:
        sample = AcceptedRegions(images, objects, [each])[0]
        inside = scenes.labels(int(Path(sample.name).stem))[sample.labels == 1]
        if float((inside == label).float().mean()) > 0.5:
            found.append(each)
    return found


def main(words: Sequence[str] | None = None) -> gmmseg.Segmenter | None:
    """Find objects, accept some, add their class; returns the new model, None where no object is a car."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="run folder or folder of weights that knows no cars")
    parser.add_argument("--out", type=Path, default=Path("objects_example"))
    arguments = parser.parse_args(words)
    model = run.open_model(arguments.model) if arguments.model else fitted()
    images, out = arguments.out / "images", arguments.out / "found"
    images.mkdir(parents=True, exist_ok=True)
    scenes = Scenes("train", length=IMAGES, seed=3)
    for index in range(IMAGES):
        Image.fromarray(scenes[index].image.permute(1, 2, 0).numpy()).save(images / f"{index}.png")

    predict_files(Predictor(model), [images], out, objects=ObjectFiles(model.label_names, min_area=30))
    tree = json.loads((out / "objects.json").read_text())
    for each in tree["annotations"][:5]:
        print(f"object {each['id']}: box {each['bbox']}, p-value {each['p_value']}")
    accepted = accepted_ids(out / "objects.json", images, scenes)
    print(f"{len(tree['annotations'])} objects, {len(accepted)} of them are mostly {CLASS}: {accepted}")
    if not accepted:
        return None
    added = run.add_class(model, CLASS, AcceptedRegions(images, out / "objects.json", accepted))
    print(f"{CLASS} is now known, from {added.cells} cells")
    return added.segmenter


if __name__ == "__main__":
    main()
