"""Every network of the zoo in every export format: does it export, does it agree, how large, how fast.

    python benchmarks/export_table.py [--networks a,b] [--formats onnx,openvino] [--again] [--docs]

Networks have random weights and mixtures with random means and variances (seed 0), 19 classes: agreement and
speed do not depend on training. Each pair runs in a process of its own and is written to
benchmarks/results/export_table.json as soon as it is done; pairs that are there already are passed over, so
that the command can be stopped and given again. Speed is images per second of processor time on one thread,
exported and eager taking turns on one image of the size given in the table. ``--docs`` writes the table into
docs/export.md between its marks.
"""

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gmmseg.allocator import keep_freed_memory
from gmmseg.atomic import write_bytes
from gmmseg.inference import Predictor, export
from gmmseg.inference.exporting import FORMATS, open_exported, parts, smallest_side
from gmmseg.models import ZOO
from gmmseg.run import fitted_looking

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "export_table.json"
PAGE = ROOT / "docs" / "export.md"
CLASSES, SIDE, ROUNDS = 19, 256, 5


def processor_seconds(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median processor time of each action; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS + 1):
        for name, action in actions.items():
            begun = time.process_time()
            action()
            times[name].append(time.process_time() - begun)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def measure(name: str, format: str) -> dict[str, object]:
    """One row of the table; a failure is a row, too."""
    keep_freed_memory()  # as commands do
    torch.set_num_threads(1)
    segmenter = fitted_looking(name, CLASSES)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{name}{FORMATS[format].suffix}"
        begun = time.process_time()
        try:
            report = export(segmenter, path, format=format)
        except Exception as error:  # the row says which, whatever it is
            return {"exports": False, "reason": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        seconds = time.process_time() - begun
        model, predictor = open_exported(path, threads=1), Predictor(segmenter)
        side = max(SIDE, smallest_side(segmenter))
        side -= side % segmenter.stride
        image = torch.rand(3, side, side, generator=torch.Generator().manual_seed(0))
        taken = processor_seconds(
            {"exported": lambda: model(image[None]), "eager": lambda: predictor.predict(image)}
        )
        return {
            "exports": True,
            "labels_identical": report.labels_identical,
            "largest_difference": report.largest_difference,
            "megabytes": sum(part.stat().st_size for part in parts(path)) / 1e6,
            "export_seconds": seconds,
            "side": side,
            "images_per_second": 1 / taken["exported"],
            "eager_images_per_second": 1 / taken["eager"],
        }


def load() -> dict[str, dict[str, dict[str, object]]]:
    """Network -> format -> row, as far as they are measured."""
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else {}


def store(rows: dict[str, dict[str, dict[str, object]]]) -> None:
    about = {
        "command": "python benchmarks/export_table.py",
        "machine": f"{platform.machine()}, two shared cores, no GPU; one thread, processor time",
        "torch": torch.__version__,
        "seed": 0,
        "classes": CLASSES,
    }
    write_bytes(RESULTS, (json.dumps({**about, "rows": rows}, indent=1) + "\n").encode())


def run_pair(name: str, format: str, limit: float) -> dict[str, object]:
    """A row, measured in a process of its own, which is ended after ``limit`` seconds."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, format]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"exports": False, "reason": f"not done after {limit / 60:.0f} minutes of a shared machine"}
    if done.returncode:
        return {"exports": False, "reason": (done.stderr.strip().splitlines() or ["ended"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def markdown(rows: dict[str, dict[str, dict[str, object]]]) -> str:
    """The table of the docs."""
    head = "| network | format | exports | labels identical | score difference | MB | images/s | eager |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for name in ZOO:
        for format, row in rows.get(name, {}).items():
            cells = [name, format, "yes" if row["exports"] else f"no: {reason(row)}"]
            if row["exports"]:
                cells += [f"{row['labels_identical']:.3%}", f"{row['largest_difference']:.1e}"]
                cells += [f"{row['megabytes']:.1f}", f"{row['images_per_second']:.2f}"]
                cells += [f"{row['eager_images_per_second']:.2f} ({row['side']} px)"]
            lines.append("| " + " | ".join([*cells, *[""] * (8 - len(cells))]) + " |")
    return "\n".join([*lines, "", *gaps(rows)])


def reason(row: dict[str, object]) -> str:
    """Why a pair does not export, without the printed graph that torch puts behind it."""
    return str(row["reason"]).partition(" in graph: ")[0]


def gaps(rows: dict[str, dict[str, dict[str, object]]]) -> list[str]:
    """One line for each format, naming the networks it has not been measured with."""
    missing = {each: [name for name in ZOO if each not in rows.get(name, {})] for each in FORMATS}
    named = {each: "all" if len(names) == len(ZOO) else ", ".join(names) for each, names in missing.items()}
    return [f"- Not measured yet, {each}: {names}." for each, names in named.items() if names]


def write_docs() -> None:
    """Put the table between its marks in the page."""
    text = PAGE.read_text(encoding="utf-8")
    marks = r"(<!-- export table -->\n).*?(<!-- end of export table -->)"
    PAGE.write_text(re.sub(marks, lambda m: f"{m[1]}{markdown(load())}\n{m[2]}", text, flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(ZOO))
    parser.add_argument("--formats", default="onnx,openvino")
    parser.add_argument("--again", action="store_true", help="measure pairs that are there already, too")
    parser.add_argument("--minutes", type=float, default=20.0, help="longest time for one pair")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/export.md")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    for name in options.networks.split(",") if not options.docs else []:
        for format in options.formats.split(","):
            if format in load().get(name, {}) and not options.again:
                continue
            row = run_pair(name, format, 60 * options.minutes)
            rows = load()
            rows.setdefault(name, {})[format] = row
            store(rows)
            print(name, format, row, flush=True)
    if options.docs:
        write_docs()
    print(markdown(load()))


if __name__ == "__main__":
    main()
