"""Images per second of `gmmseg predict` against the bare forward passes, in one run.

    python benchmarks/prediction.py [--images 24] [--height 360] [--width 480] [--network NAME] [--threads 1]

Files are PNG of noise in the size of CamVid; everything that `gmmseg predict` writes by default is written,
with a threshold. Rounds alternate between the two, bare passes first and last, so that whatever else the
machine does falls on both alike. Writes benchmarks/results/prediction.json.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

import gmmseg
from against_bare_passes import noise, options_parser, parsed, write_report
from gmmseg.images import load_image
from gmmseg.inference import Predictor, Work, predict_files
from gmmseg.inference.pictures import photograph_of
from gmmseg.inference.windows import forward

RESULTS = Path(__file__).parent / "results" / "prediction.json"
TARGET = 0.8


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Time on the clock, and processor time of this thread, which is the one that runs the network.

    The latter is what the clock would show with a processor free for the other threads, so it does not
    depend on what else the machine does.
    """
    begun = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - begun[0], time.thread_time() - begun[1]


def ratios(
    predictor: Predictor, folder: Path, out: Path, options: argparse.Namespace
) -> tuple[list[float], list[list[float]]]:
    """Images per second of the bare passes; those of `predict_files` over them, by clock and by thread."""
    images = [load_image(path)[None] for path in sorted(folder.iterdir())]
    work = Work(threshold=options.threshold, batch_size=options.batch_size)

    def bare() -> None:
        for start in range(0, len(images), options.batch_size):
            forward(predictor.network, torch.cat(images[start : start + options.batch_size]))

    bare()  # the first pass also allocates
    times, shares = [seconds(bare)], []
    for _ in range(options.rounds):
        whole = seconds(lambda: predict_files(predictor, [folder], out, work))
        times.append(seconds(bare))
        shares.append([(times[-2][kind] + times[-1][kind]) / 2 / whole[kind] for kind in (0, 1)])
    return [len(images) / clock for clock, _ in times], shares


def main() -> None:
    parser = options_parser(__doc__)
    parser.set_defaults(
        images=24, height=360, width=480, network="light_efficientnet_lite0", rounds=5, threads=1
    )
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--threshold", type=float, default=0.0)
    options = parsed(parser)
    predictor = Predictor(gmmseg.build(options.network, num_classes=11, preset="softmax").eval())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        folder.mkdir()
        for index in range(options.images):
            pixels = noise(index, (options.height, options.width), 12)
            Image.fromarray(photograph_of(pixels)).save(folder / f"{index:03d}.png")
        bare, shares = ratios(predictor, folder, Path(scratch) / "out", options)
    found = {
        "bare_images_per_second": statistics.median(bare),
        "ratio": statistics.median(clock for clock, _ in shares),
        "network_thread_ratio": statistics.median(thread for _, thread in shares),
        "ratios": shares,
        "target": TARGET,
    }
    write_report(RESULTS, options, found)


if __name__ == "__main__":
    main()
