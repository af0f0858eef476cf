"""How often thresholds with a promise raise false alarms on images they were not found on.

    python experiments/promises.py scenes --model RUN/final               400 built-in scenes
    python experiments/promises.py camvid --model RUN/final --camvid DIR  CamVid val and test, 334 images
    python experiments/promises.py simulation                             whose images weigh the fused score
    python experiments/promises.py table                                  the tables of docs/thresholds.md

No image was trained on. The score is the one the model shows. Where that is the fused one, one image in five
of the first set weighs its parts, as `gmmseg calibrate` does, and is left out. What a threshold does to an
image is found once and kept (--cache); then the pool is split at random a thousand times (--splits) into
images to calibrate on (299, and again 200) and the others to test on, as if they were exchangeable. For
CamVid, whose frames come from three drives, a threshold found on one drive is tested on the others, too:
those are not exchangeable, and nothing is promised of them.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gmmseg import run
from gmmseg.atomic import write_bytes
from gmmseg.data import Scenes, open_dataset
from gmmseg.inference import Predictor, calibrate
from gmmseg.inference.calibrating import weighing_images
from gmmseg.inference.image_losses import EXACT, ImageLosses, alarm_level
from gmmseg.labels import IGNORE
from gmmseg.models.calibration_file import ANOMALY_MAP, FUSED
from gmmseg.models.saving import digest
from gmmseg.samples import Sample, SegmentationDataset

RESULTS = Path(__file__).parent / "results" / "promises"
ALPHAS = (0.01, 0.05, 0.1)
CALIBRATED_ON = (299, 200)
"""Images of a split that are calibrated on; the others are tested on."""
MIN_AREAS = (1, 50)
AT_ONCE = 100  # splits whose rates are in memory together


@dataclass(frozen=True)
class Pool:
    """Images by name: the share (i l) of their known pixels above each of the levels (l), and by least area
    the level (i) below which they raise an alarm."""

    names: list[str]
    levels: NDArray[np.float64]
    above: NDArray[np.float32]
    alarms: dict[int, NDArray[np.float64]]


def measured(model: Path, datasets: Sequence[SegmentationDataset], cache: Path | None) -> tuple[Pool, str]:
    """What each threshold does to each image, and the digest of the model's weights."""
    segmenter = run.open_model(model, calibrated=False)
    weights = digest(segmenter)
    if cache is not None and cache.is_file():
        kept = np.load(cache, allow_pickle=False)
        if str(kept["weights"]) != weights:
            raise SystemExit(f"{cache} is of other weights: remove it, or name another file")
    else:
        weighing = weighing_images(segmenter, len(datasets[0]))
        if weighing:
            segmenter.calibration = calibrate(Predictor(segmenter), datasets[0])
        kept = _gone_through(Predictor(segmenter), datasets, weighing)
        if cache is not None:
            np.savez(cache, weights=weights, **kept)
    return _pool(kept), weights


def _gone_through(
    predictor: Predictor, datasets: Sequence[SegmentationDataset], weighing: range
) -> dict[str, NDArray]:
    """Bins of scores with their parts of an image, one image after the other, and alarm levels.

    ``weighing``: images of the first set that are left out.
    """
    names, sizes, bins, units, alarms = [], [], [], [], []
    for dataset in datasets:
        left_out = weighing if dataset is datasets[0] else range(0)
        for index in (each for each in range(len(dataset)) if each not in left_out):
            sample = dataset[index]
            scores, known = _known_scores(predictor, sample)
            losses = ImageLosses()
            losses.add_image(np.zeros(int(known.sum()), np.int64), scores[known])
            losses.merge_processes()
            names.append(sample.name)
            sizes.append(len(losses.keys))
            bins.append(losses.keys)
            units.append(losses.units)
            alarms.append([alarm_level(scores, known, area) for area in MIN_AREAS])
            print(f"{len(names)} {sample.name}", flush=True)
    return {
        "names": np.array(names),
        "sizes": np.array(sizes),
        "bins": np.concatenate(bins),
        "units": np.concatenate(units),
        "alarms": np.array(alarms),
    }


def _known_scores(predictor: Predictor, sample: Sample) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    scores = predictor.scores(sample, (predictor.anomaly_reading,))[0, 0].cpu().numpy()
    return scores, (sample.labels != IGNORE).numpy()


def _pool(kept: dict[str, NDArray]) -> Pool:
    """The images on one scale of levels."""
    levels, place = np.unique(kept["bins"], return_inverse=True)
    starts = np.cumsum(kept["sizes"]) - kept["sizes"]
    above = np.zeros((len(starts), len(levels)), np.float32)
    for image, (start, size) in enumerate(zip(starts, kept["sizes"])):
        parts = np.zeros(len(levels), np.int64)
        parts[place[start : start + size]] = kept["units"][start : start + size]
        above[image] = (parts.sum() - parts.cumsum()) / parts.sum()
    alarms = {area: kept["alarms"][:, number] for number, area in enumerate(MIN_AREAS)}
    return Pool(kept["names"].tolist(), levels.astype(np.float64), above, alarms)


def pixel_rates(pool: Pool, chosen: NDArray[np.bool_], alpha: float) -> tuple[NDArray, NDArray]:
    """For splits (s i) into images to calibrate on and others: mean share of an image's known pixels above
    the threshold that promises ``alpha`` per pixel (s), and how many of the others have any such pixel (s).
    """
    shares, images = [], []
    for start in range(0, len(chosen), AT_ONCE):
        part = chosen[start : start + AT_ONCE]
        rates = (1 + part.astype(np.float32) @ pool.above) / (1 + part.sum(1, keepdims=True))
        if (rates[:, -1] > alpha).any():
            raise SystemExit(f"too few images for {alpha}")
        others = pool.above[:, np.argmax(rates <= alpha, axis=1)].T
        shares.append(_mean(others, ~part))
        images.append(_mean(others > 0, ~part))
    return np.concatenate(shares), np.concatenate(images)


def _mean(values: NDArray, where: NDArray[np.bool_]) -> NDArray:
    return (values * where).sum(1) / where.sum(1)


def image_rates(levels: NDArray[np.float64], chosen: NDArray[np.bool_], alpha: float) -> NDArray:
    """For splits (s i): the share (s) of the other images above the threshold that promises ``alpha``.

    The threshold is the order statistic of the docs; of the first split it is compared with the library's.
    """
    found = []
    for number, split in enumerate(chosen):
        known = np.sort(levels[split])
        rank = len(known) + 1 - int(alpha * (len(known) + 1) + 1e-9)  # ceil((n + 1)(1 - alpha))
        if rank > len(known):
            raise SystemExit(f"too few images for {alpha}")
        threshold = known[rank - 1]
        if number == 0 and threshold != _library_threshold(known, alpha):
            raise SystemExit("the library finds another threshold")
        found.append((levels[~split] > threshold).mean())
    return np.array(found)


def _library_threshold(levels: NDArray[np.float64], alpha: float) -> float | None:
    losses = ImageLosses(EXACT)
    for level in levels:
        losses.add_image(np.zeros(1, np.int64), np.array([level], np.float32))
    curve = losses.curve(0)
    return None if curve is None else curve.threshold(alpha)


def summary(rates: NDArray) -> dict[str, float]:
    """Mean over splits, its standard error, and where nine of ten splits lie."""
    low, high = np.quantile(rates, (0.05, 0.95))
    return {
        "mean": float(rates.mean()),
        "standard_error": float(rates.std(ddof=1) / np.sqrt(len(rates))) if len(rates) > 1 else 0.0,
        "from": float(low),
        "to": float(high),
    }


def over_splits(pool: Pool, calibrated_on: int, splits: int, seed: int) -> dict[str, dict]:
    """Rates of false alarms over random splits, by what is counted and by the rate promised."""
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(len(pool.names)), (splits, 1)), axis=1)
    chosen = order < calibrated_on
    found: dict[str, dict] = {"pixel": {}, "images above the threshold per pixel": {}}
    for alpha in ALPHAS:
        shares, images = pixel_rates(pool, chosen, alpha)
        found["pixel"][str(alpha)] = summary(shares)
        found["images above the threshold per pixel"][str(alpha)] = summary(images)
    for area, levels in pool.alarms.items():
        name = "image" if area == 1 else f"image, regions of {area} pixels"
        found[name] = {str(alpha): summary(image_rates(levels, chosen, alpha)) for alpha in ALPHAS}
    return found


def between_drives(pool: Pool, alpha: float = 0.05) -> list[dict]:
    """Rates at thresholds that were found on the frames of one drive, on those of another."""
    drive = np.array([name.split("/")[-1].split("_")[0] for name in pool.names])
    found = []
    for one in np.unique(drive):
        for other in np.unique(drive):
            if one != other:
                pair = (drive == one) | (drive == other)
                part = Pool(
                    [name for name, kept in zip(pool.names, pair) if kept],
                    pool.levels,
                    pool.above[pair],
                    {area: levels[pair] for area, levels in pool.alarms.items()},
                )
                chosen = (drive[pair] == one)[None]
                found.append(
                    {
                        "calibrated_on": str(one),
                        "tested_on": str(other),
                        "images": [int((drive == one).sum()), int((drive == other).sum())],
                        "alpha": alpha,
                        "pixel": float(pixel_rates(part, chosen, alpha)[0][0]),
                        "image": float(image_rates(part.alarms[1], chosen, alpha)[0]),
                    }
                )
    return found


def simulated(images: int, alpha: float, rare: float, runs: int, seed: int) -> dict[str, float]:
    """How often a new image exceeds a threshold that promises ``alpha`` on so many ``images``.

    The score is a sum of two parts over their deviations, found on the same images or on a quarter as many
    others.

    Each image has an offset of its own in each part, a hundred times larger in a ``rare`` share of images.
    """
    rng = np.random.default_rng(seed)
    others = -(-images // 4)
    shape = (runs, others + images + 1, 2)
    offsets = np.abs(rng.normal(size=shape)) * np.where(rng.random(shape) < rare, 100.0, 1.0)
    weighing, rest = offsets[:, :others], offsets[:, others:]
    rank = int(np.ceil(round((images + 1) * (1 - alpha), 9)))
    found = {}
    for name, seen in (("the same images", rest[:, :-1]), ("other images", weighing)):
        deviations = np.sqrt(seen.var(axis=1, keepdims=True) + 1.0)
        scores = (rest / deviations).sum(axis=2)
        thresholds = np.sort(scores[:, :-1], axis=1)[:, rank - 1]
        found[name] = float((scores[:, -1] > thresholds).mean())
    return found


def simulate(runs: int, seed: int) -> None:
    """Simulate, and write the results file."""
    settings = [(19, 0.05, 0.05), (99, 0.01, 0.05), (99, 0.01, 0.02)]
    rows = [
        {"images": n, "alpha": alpha, "rare": rare, "rates": simulated(n, alpha, rare, runs, seed)}
        for n, alpha, rare in settings
    ]
    path = RESULTS / "simulation.json"
    write_bytes(path, (json.dumps({"runs": runs, "seed": seed, "rows": rows}, indent=2) + "\n").encode())
    print(json.dumps(rows, indent=1))


def make(arguments: argparse.Namespace) -> None:
    """Measure, split, and write the results file."""
    if arguments.what == "scenes":
        datasets: list[SegmentationDataset] = [Scenes("test", length=400)]
    else:
        datasets = [open_dataset("camvid", arguments.camvid, split) for split in ("val", "test")]
    pool, weights = measured(arguments.model, datasets, arguments.cache)
    model = run.open_model(arguments.model, calibrated=False)
    results = {
        "weights": weights,
        "score": ANOMALY_MAP if model.density is None else FUSED,
        "images": len(pool.names),
        "splits": arguments.splits,
        "seed": arguments.seed,
        "rates": {
            str(count): over_splits(pool, count, arguments.splits, arguments.seed) for count in CALIBRATED_ON
        },
        "drives": between_drives(pool) if arguments.what == "camvid" else [],
    }
    path = RESULTS / f"{arguments.what}.json"
    write_bytes(path, (json.dumps(results, indent=2) + "\n").encode())
    print(f"results in {path}")


def print_table(which: str) -> None:
    """A table of docs/thresholds.md, from the files there are: promises or drives."""
    stored = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("scenes", "camvid")}
    if which == "promises":
        print(
            "| images | calibrated on | counted | promised 1 % | 5 % | 10 % |\n|---|---:|---|---:|---:|---:|"
        )
        for name, results in stored.items():
            for count, found in results["rates"].items():
                for counted, rates in found.items():
                    print(f"| {name} | {count} | {counted} | {' | '.join(map(_cell, rates.values()))} |")
        return
    print("| calibrated on | tested on | per pixel % | per image % |\n|---|---|---:|---:|")
    for row in stored["camvid"]["drives"]:
        names = zip((row["calibrated_on"], row["tested_on"]), row["images"])
        one, other = (f"{name} ({count})" for name, count in names)
        print(f"| {one} | {other} | {100 * row['pixel']:.2f} | {100 * row['image']:.1f} |")


def _cell(rate: dict[str, float]) -> str:
    return f"{100 * rate['mean']:.2f} ({100 * rate['from']:.1f} to {100 * rate['to']:.1f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("scenes", "camvid", "simulation", "table"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--cache", type=Path, help="where to keep what was found of each image (.npz)")
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.what == "table":
        for which in ("promises", "drives"):
            print_table(which)
            print()
        return
    if arguments.what == "simulation":
        simulate(runs=40_000, seed=arguments.seed)
        return
    if arguments.model is None or (arguments.what == "camvid" and arguments.camvid is None):
        parser.error("--model is needed, and --camvid for camvid")
    make(arguments)


if __name__ == "__main__":
    main()
