"""How long a model takes, in several runtimes side by side: passes take turns in one run.

Whatever else a machine does then falls on all alike, and ratios mean something where seconds do not.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from gmmseg.inference.export_graph import ExportGraph, symbolic_sides
from gmmseg.inference.exporting import FORMATS, export, open_exported
from gmmseg.inference.predictor import Predictor
from gmmseg.models import Segmenter, from_pretrained

Pass = Callable[[Tensor], object]
"""One pass over images (1 3 h w), all outputs at the size of the image."""
EAGER, COMPILED = "eager", "compiled"
STARTS = 4
"""Times that exported files are opened anew: where one opening puts its memory moves its speed by a hundredth
or three, for as long as it is open."""
LEAST_ROUNDS = 2
"""After each start."""
BREATH = 0.05
"""Seconds between passes: threads of the runtime before stay awake for a while, and would take a core."""


@dataclass(frozen=True)
class Prepared:
    """A segmenter for a runtime: itself, and the file or folder that another process opens it from."""

    segmenter: Segmenter
    runtime: str
    path: Path

    def start(self, threads: int) -> Pass:
        """Its pass, in its runtime."""
        if self.runtime in FORMATS:
            return open_exported(self.path, threads=threads)
        if self.runtime == EAGER:
            predictor = Predictor(self.segmenter)
            return lambda images: predictor.predict(images[0])
        compiled = torch.compile(ExportGraph(self.segmenter, symbolic_sides).eval(), dynamic=False)
        threshold = torch.tensor(torch.inf)
        return torch.inference_mode()(lambda images: compiled(images, threshold))


def check_runtimes(names: Sequence[str]) -> None:
    """ValueError unless there is at least one, and each is one that `prepare` knows."""
    known = (EAGER, COMPILED, *FORMATS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown runtime {unknown[0]!r}: choose {', '.join(known)}")
    if not names:
        raise ValueError(f"no runtime is named: choose one or several of {', '.join(known)}")


def prepare(segmenter: Segmenter, runtime: str, scratch: Path) -> Prepared:
    """A segmenter ready to start in a runtime; what other processes open is written to ``scratch``."""
    check_runtimes([runtime])
    path = scratch / f"{len(list(scratch.iterdir()))}_{runtime}"
    if runtime in FORMATS:
        path = path.with_suffix(FORMATS[runtime].suffix)
        export(segmenter, path, format=runtime)
    else:
        segmenter.save_pretrained(path)
    return Prepared(segmenter, runtime, path)


@dataclass(frozen=True)
class Contender:
    """One of those that take turns: ``label`` and ``runtime`` name it, ``start`` gives its pass.

    ``peak_megabytes``: see `peak_megabytes`.
    """

    label: str
    runtime: str
    start: Callable[[], Pass]
    peak_megabytes: float | None


def enter(label: str, prepared: Prepared, images: Tensor, threads: int) -> Contender:
    """A contender; each start of an exported file opens it anew, other runtimes start once."""
    peak = peak_megabytes(prepared, images, threads)
    start = partial(prepared.start, threads)
    return Contender(label, prepared.runtime, start if prepared.runtime in FORMATS else cache(start), peak)


def peak_megabytes(prepared: Prepared, images: Tensor, threads: int) -> float | None:
    """Resident memory that a model and one pass take at most, in a process of its own.

    None where the system does not tell, or nobody can build the network from its folder.
    """
    if prepared.segmenter.recipe is None and prepared.runtime not in FORMATS:
        return None
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak, prepared.runtime, prepared.path, tuple(images.shape), threads).result()


def _peak(runtime: str, path: Path, shape: tuple[int, ...], threads: int) -> float | None:
    torch.set_num_threads(threads)
    before = _reset_peak()
    if runtime in FORMATS:
        run: Pass = open_exported(path, threads=threads)
    else:
        run = Prepared(from_pretrained(path).eval(), runtime, path).start(threads)
    run(torch.rand(shape))
    peak = _resident("VmHWM")
    return None if before is None or peak is None else peak - before


@dataclass(frozen=True)
class Timing:
    """The passes of one contender: seconds by the clock and of the processor, one of each per round."""

    contender: Contender
    clock: tuple[float, ...]
    processor: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Seconds by the clock that this share of the passes did not exceed."""
        ordered = sorted(self.clock)
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def race(contenders: Sequence[Contender], images: Tensor, seconds: float) -> list[Timing]:
    """Let contenders take turns for ``seconds`` in all, and at least a few rounds after each start.

    Who starts first takes turns, too: of two equal files onnxruntime was seen to run the first three in a
    hundred slower than the second, for as long as both were open.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for start in range(STARTS):
        started = {index: contenders[index].start() for index in _in_turn(len(contenders), start)}
        passes = [started[index] for index in range(len(contenders))]
        for each in passes:
            each(images)  # the first pass allocates and compiles
        for round in _rounds(passes, images, seconds / STARTS):
            for times, time_of in zip(taken, round):
                times.append(time_of)
    return [Timing(contender, *zip(*times)) for contender, times in zip(contenders, taken)]


def _rounds(passes: Sequence[Pass], images: Tensor, seconds: float) -> Iterator[list[tuple[float, float]]]:
    """Rounds, in each of them the times of every pass, by the clock and of the processor.

    Each round goes through them in the other order.
    """
    began, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - began < seconds:
        times = {index: _timed(passes[index], images) for index in _in_turn(len(passes), rounds)}
        yield [times[index] for index in range(len(passes))]
        rounds += 1


def _in_turn(count: int, number: int) -> Sequence[int]:
    """0 .. count - 1, in the other order every other time."""
    return range(count) if number % 2 else range(count - 1, -1, -1)


def _timed(run: Pass, images: Tensor) -> tuple[float, float]:
    """Seconds of one pass by the clock and of the processor."""
    time.sleep(BREATH)
    begun = time.perf_counter(), time.process_time()
    run(images)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How fast we are beside them, as the median over rounds: above 1 is faster."""
    return statistics.median(other / own for own, other in zip(ours, theirs))


def _reset_peak() -> float | None:
    """Let the peak of resident memory count from here; what is resident now, in megabytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(field: str) -> float | None:
    """A line of this process's status, in megabytes; None where the system keeps none."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    lines = [line.split() for line in status.read_text().splitlines()]
    return next((int(line[1]) * 1024 / 1e6 for line in lines if line and line[0] == f"{field}:"), None)
