"""Does `gmmseg monitor` keep its promise, how soon does it notice a change, and does it name the right one?

    python experiments/monitor.py streets --model DIR [--cache FILE]
    python experiments/monitor.py table

``DIR`` is a model trained on the built-in streets, such as demo/gmm of `gmmseg demo`. Two numbers per image
are found once (--cache): of streets as they are, with fog, brighter, darker, and with unknown things in them.
Streams are then drawn from these numbers, a thousand of each kind. Normal streams: a random order of all
normal streets, the first 100 to calibrate on; and long ones, calibration images and stream drawn with
replacement. Changed streams: 100 calibration images and 200 normal ones drawn so, then images of one kind.
All streams of a kind run side by side, on numbers alone; the first is compared with the library's Monitor.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg import float_order, run
from gmmseg.atomic import write_bytes
from gmmseg.data import Streets, StreetsAnomaly
from gmmseg.inference import Monitor, Predictor
from gmmseg.inference.betting import EXPONENTS, log_wins, unspent
from gmmseg.inference.image_statistics import BITS, STATISTICS, image_statistics, level_of
from gmmseg.models import Calibration
from gmmseg.models.reference_images import CONDITIONS, OBJECTS, STORED_AS, ReferenceCounts
from gmmseg.models.saving import digest

RESULTS = Path(__file__).parent / "results" / "monitor"
ALPHAS = (0.1, 0.05, 0.01)
CALIBRATED_ON = 100
BEFORE = 200  # normal images before a change
AFTER = 300  # images after it
LONG = 600
SCENES = 100  # of a kind; of normal ones twice as many
FOG = 200
THINGS = "unknown objects"


def foggy(image: Tensor, share: float) -> Tensor:
    """An image (3 h w) uint8 behind grey fog that hides this share of it."""
    return (image * (1 - share) + FOG * share).round().to(torch.uint8)


def brighter(image: Tensor, factor: float) -> Tensor:
    """An image (3 h w) uint8 with its brightness multiplied."""
    return (image * factor).clamp(0, 255).to(torch.uint8)


def images_by_kind() -> dict[str, Iterator[Tensor]]:
    """Images by what has happened to them; half of the normal streets are those that are changed."""
    val, test = Streets("val", length=SCENES), Streets("test", length=SCENES, seed=5)
    found: dict[str, Iterator[Tensor]] = {"normal": itertools.chain(images_of(val), images_of(test))}
    for share in (0.2, 0.4):
        found[f"fog {share}"] = map(partial(foggy, share=share), images_of(test))
    for factor in (0.6, 1.5):
        found[f"brightness {factor}"] = map(partial(brighter, factor=factor), images_of(test))
    return {**found, THINGS: itertools.islice(with_things(), SCENES)}


def images_of(dataset: Streets) -> Iterator[Tensor]:
    """The images of a set, one after the other."""
    return (dataset[index].image for index in range(len(dataset)))


def with_things() -> Iterator[Tensor]:
    """Streets in which there is something unknown: a burst of unknown objects has one in every image."""
    strange = StreetsAnomaly("val", length=2 * SCENES)
    samples = (strange[index] for index in range(len(strange)))
    return (sample.image for sample in samples if bool((sample.labels == 1).any()))


def measured(model: Path, cache: Path | None) -> tuple[dict[str, NDArray], str]:
    """The statistics (n 2) of images by kind, and the digest of the model's weights."""
    segmenter = run.open_model(model)
    weights = digest(segmenter)
    if cache is not None and cache.is_file():
        kept = dict(np.load(cache, allow_pickle=False))
        if str(kept.pop("weights")) != weights:
            raise SystemExit(f"{cache} is of other weights: remove it, or name another file")
        return kept, weights
    predictor = Predictor(segmenter)
    found = {}
    for kind, images in images_by_kind().items():
        rows = [image_statistics(predictor.predict(image).anomaly.numpy()) for image in images]
        found[kind] = np.array([[row[name] for name in STATISTICS] for row in rows])
        print(kind, len(rows), flush=True)
    if cache is not None:
        np.savez(cache, weights=weights, **found)
    return found, weights


def binned(values: NDArray) -> NDArray:
    """Values (...) as the numbers of their bins (...)."""
    keys = float_order.keys(np.asarray(values, np.float32).ravel()) >> np.uint32(32 - BITS)
    return keys.reshape(values.shape).astype(np.int64)


def log_wealth(values: NDArray, rng: np.random.Generator, two_sided: bool) -> tuple[NDArray, NDArray]:
    """Of streams (s n) that begin with the calibration images: log wealth and p-values (s t) after each
    image."""
    bins = binned(values)
    levels = np.unique(bins)
    place = np.searchsorted(levels, bins)
    streams, total = place.shape
    counts = np.zeros((streams, len(levels)), np.int64)
    everyone = np.arange(streams)
    for index in range(CALIBRATED_ON):
        counts[everyone, place[:, index]] += 1
    ranks = np.arange(len(levels))
    bets = len(EXPONENTS) * (1 + two_sided)
    amounts = np.full((bets, streams), -np.inf)
    wealth, p_values = [], []
    for index in range(CALIBRATED_ON, total):
        here = place[:, index]
        counts[everyone, here] += 1
        larger = (counts * (ranks > here[:, None])).sum(1)
        p = (larger + rng.random(streams) * counts[everyone, here]) / (index + 1)
        seen = index - CALIBRATED_ON
        part = (unspent(seen) - unspent(seen + 1)) / bets
        amounts = np.logaddexp(amounts, np.log(part)) + log_wins(p, two_sided=two_sided)
        rest = np.full((1, streams), np.log(unspent(seen + 1)))
        wealth.append(np.logaddexp.reduce(np.concatenate([amounts, rest])))
        p_values.append(p)
    return np.array(wealth).T, np.array(p_values).T


def first_alarms(
    streams: NDArray, rng: np.random.Generator, alphas: tuple[float, ...]
) -> dict[float, NDArray]:
    """Of streams (s n 2): the image (s 2) at which each statistic raises its alarm, by alpha; inf: never."""
    wealth = [
        log_wealth(streams[..., index], rng, kind == CONDITIONS)[0] for index, kind in enumerate(STATISTICS)
    ]
    found = {}
    for alpha in alphas:
        over = np.stack([each >= np.log(len(STATISTICS) / alpha) for each in wealth], -1)
        found[alpha] = np.where(over.any(1), over.argmax(1), np.inf)
    return found


def normal_streams(normal: NDArray, count: int, rng: np.random.Generator) -> dict[str, dict]:
    """The share of normal streams with an alarm, by how they are drawn and by what was promised."""
    orders = np.stack([normal[rng.permutation(len(normal))] for _ in range(count)])
    drawn = normal[rng.integers(len(normal), size=(count, CALIBRATED_ON + LONG))]
    found = {}
    for name, streams in (("in random order", orders), ("drawn with replacement", drawn)):
        alarms = first_alarms(streams, rng, ALPHAS)
        found[name] = {
            "images": streams.shape[1] - CALIBRATED_ON,
            "alarms": {str(alpha): float(np.isfinite(at).any(1).mean()) for alpha, at in alarms.items()},
        }
    return found


def changed_streams(pools: dict[str, NDArray], count: int, rng: np.random.Generator) -> dict[str, dict]:
    """By kind of change: how soon it is noticed, by which statistic, and how often not at all."""
    normal, found = pools["normal"], {}
    for kind in (each for each in pools if each != "normal"):
        before = normal[rng.integers(len(normal), size=(count, CALIBRATED_ON + BEFORE))]
        after = pools[kind][rng.integers(len(pools[kind]), size=(count, AFTER))]
        at = first_alarms(np.concatenate([before, after], 1), rng, (0.01,))[0.01]
        first = at.min(1)
        noticed = np.isfinite(first) & (first >= BEFORE)
        delay = first[noticed] - BEFORE + 1
        named = OBJECTS if kind == THINGS else CONDITIONS
        which = at[noticed].argmin(1) == STATISTICS.index(named)
        found[kind] = {
            "too_early": float((first < BEFORE).mean()),
            "noticed": float(noticed.mean()),
            "delay": np.quantile(delay, (0.5, 0.1, 0.9)).tolist() if len(delay) else None,
            "named": named,
            "named_right": float(which.mean()) if len(which) else None,
        }
    return found


def compared_with_the_library(normal: NDArray) -> None:
    """SystemExit unless the Monitor has the wealth of the simulation, given the same random numbers."""
    values = normal[: CALIBRATED_ON + 50]
    counts = {}
    for index, kind in enumerate(STATISTICS):
        bins, times = np.unique(binned(values[:CALIBRATED_ON, index]), return_counts=True)
        levels = tuple(level_of(int(each)) for each in bins)
        counts[STORED_AS[kind]] = ReferenceCounts(levels, tuple(times.tolist()))
    monitor = Monitor(Calibration("w", {}, 1.0, None, None, None, image_statistics=counts))
    seen = [
        monitor.update_statistics(str(index), dict(zip(STATISTICS, row)))
        for index, row in enumerate(values[CALIBRATED_ON:].tolist())
    ]
    for index, kind in enumerate(STATISTICS):
        numbers = _Repeated([np.random.default_rng((0, each.index)).random(2)[index] for each in seen])
        wealth, p_values = log_wealth(values[None, :, index], numbers, kind == CONDITIONS)
        same = np.allclose(p_values[0], [each.p_values[kind] for each in seen]) and np.allclose(
            np.exp(wealth[0]), [each.wealth[kind] for each in seen]
        )
        if not same:
            raise SystemExit("the library's Monitor says something else")


class _Repeated:
    """Gives the numbers of a list one after the other, as a generator of random numbers would."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = iter(numbers)

    def random(self, count: int) -> NDArray:
        return np.full(count, next(self.numbers))


def make(arguments: argparse.Namespace) -> None:
    """Measure, draw streams, and write the results file."""
    pools, weights = measured(arguments.model, arguments.cache)
    rng = np.random.default_rng(arguments.seed)
    compared_with_the_library(pools["normal"])
    results = {
        "weights": weights,
        "images": {kind: len(values) for kind, values in pools.items()},
        "calibrated_on": CALIBRATED_ON,
        "streams": arguments.streams,
        "seed": arguments.seed,
        "normal": normal_streams(pools["normal"], arguments.streams, rng),
        "before": BEFORE,
        "after": AFTER,
        "changed": changed_streams(pools, arguments.streams, rng),
    }
    path = RESULTS / "streets.json"
    write_bytes(path, (json.dumps(results, indent=2) + "\n").encode())
    print(f"results in {path}")


def print_table(which: str) -> None:
    """A table of docs/monitor.md: normal or changed."""
    results = json.loads((RESULTS / "streets.json").read_text())
    if which == "normal":
        print("| normal streams | images | promised 10 % | promised 5 % | promised 1 % |")
        print("|---|---:|---:|---:|---:|")
        for name, row in results["normal"].items():
            cells = (f"{100 * row['alarms'][str(alpha)]:.1f}" for alpha in ALPHAS)
            print(f"| {name} | {row['images']} | {' | '.join(cells)} |")
        return
    print("| change | noticed % | after so many images | named | rightly % | alarm before the change % |")
    print("|---|---:|---:|---|---:|---:|")
    for kind, row in results["changed"].items():
        delay = "" if row["delay"] is None else "{:.0f} ({:.0f} to {:.0f})".format(*row["delay"])
        right = "" if row["named_right"] is None else f"{100 * row['named_right']:.1f}"
        noticed, early = 100 * row["noticed"], 100 * row["too_early"]
        print(f"| {kind} | {noticed:.1f} | {delay} | {row['named']} | {right} | {early:.1f} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("streets", "table"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cache", type=Path, help="where to keep the numbers of each image (.npz)")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.what == "table":
        for which in ("normal", "changed"):
            print_table(which)
            print()
        return
    if arguments.model is None:
        parser.error("--model is needed")
    make(arguments)


if __name__ == "__main__":
    main()
