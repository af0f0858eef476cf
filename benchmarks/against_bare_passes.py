"""What benchmarks of a command against the bare forward passes share: options, noise, the report."""

import argparse
import json
import platform
from pathlib import Path

import torch
from torch import Tensor


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all have; their defaults are those of the benchmark, by `set_defaults`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--images", "--height", "--width", "--rounds"):
        parser.add_argument(name, type=int)
    parser.add_argument("--network")
    parser.add_argument("--threads", type=int, help="threads torch may use")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line; torch then has its threads and its seed."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


def noise(index: int, size: tuple[int, int], cell: int) -> Tensor:
    """A smooth image of noise (3 h w) in [0, 1], drawn in cells of this many pixels."""
    generator = torch.Generator().manual_seed(index)
    coarse = torch.rand(1, 3, *(side // cell for side in size), generator=generator)
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[0]


def write_report(path: Path, options: argparse.Namespace, found: dict[str, object]) -> None:
    """Print and write the options, the machine and what was found."""
    machine = {"torch": torch.__version__, "cpu": platform.processor() or platform.machine()}
    report = json.dumps({**vars(options), **machine, **found}, indent=2)
    print(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report + "\n")
