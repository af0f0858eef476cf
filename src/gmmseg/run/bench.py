"""Speed: models and their softmax twins in several runtimes, interleaved in one run."""

import platform
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import gmmseg
from gmmseg.inference.speed import Contender, Timing, check_runtimes, enter, prepare, race, ratio
from gmmseg.json_tree import JSON
from gmmseg.models import HEAD_PRESETS, ZOO, Segmenter, build
from gmmseg.models.companion import Companion
from gmmseg.models.heads import SoftmaxHead
from gmmseg.models.segmenter import replace_head
from gmmseg.run.runs import open_model

GMM, SOFTMAX = "gmm", "softmax"


@dataclass(frozen=True)
class Race:
    """How to measure: side of the square image, seconds per model, threads, and classes of named networks."""

    runtimes: Sequence[str]
    size: int = 512
    seconds: float = 30.0
    threads: int = 1
    classes: int = 19


def bench(sources: Sequence[str], settings: Race) -> JSON:
    """The results of each model: a row for each of its two heads in each runtime.

    ``sources``: run folders, folders of weights, or names of the zoo, which get random weights. The twin has
    the same features and a softmax head in place of the mixtures; models whose head cannot be replaced have
    none. ``ratio`` of a row: how fast the model is beside its twin in the same runtime.
    """
    check_runtimes(settings.runtimes)
    for source in sources:  # all of them before any is measured, which takes long
        if source not in ZOO:
            open_model(source)
    torch.set_num_threads(settings.threads)
    rows = [row for source in sources for row in _bench_one(source, settings)]
    return {
        "version": gmmseg.__version__,
        "machine": f"{platform.machine()}, {settings.threads} threads, torch {torch.__version__}",
        "size": settings.size,
        "rows": rows,
    }


def _bench_one(source: str, settings: Race) -> list[JSON]:
    segmenter = fitted_looking(source, settings.classes) if source in ZOO else open_model(source)
    heads = {SOFTMAX if segmenter.mixture is None else GMM: segmenter.eval()}
    if segmenter.mixture is not None and segmenter.points_are_cells:
        heads[SOFTMAX] = _twin(segmenter)
    images = torch.rand(1, 3, settings.size, settings.size, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as scratch:
        contenders = [
            enter(head, prepare(model, runtime, Path(scratch)), images, settings.threads)
            for runtime in settings.runtimes
            for head, model in heads.items()
        ]
        timings = race(contenders, images, settings.seconds)
    about = {"model": source, "classes": segmenter.num_classes}
    return [{**about, **_row(timing, _twin_of(timing, timings))} for timing in timings]


def _twin(segmenter: Segmenter) -> Segmenter:
    """The same features under a softmax head, and as many more decoders with one as there are beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is left behind is replaced
        twin = replace_head(segmenter, HEAD_PRESETS[SOFTMAX])
    for each in segmenter.companions:
        assert isinstance(each, Companion)
        channels = (each.decoder or segmenter.features).out_channels
        assert isinstance(channels, int)
        head = SoftmaxHead(channels, segmenter.num_classes)
        twin.companions.append(Companion(each.decoder, head, HEAD_PRESETS[SOFTMAX]))
    return twin.eval()


def _twin_of(timing: Timing, timings: Sequence[Timing]) -> Timing | None:
    """The softmax twin's passes in the same runtime; None for a twin itself."""
    ours: Contender = timing.contender
    same = [each for each in timings if each.contender.runtime == ours.runtime]
    return next((each for each in same if each.contender.label == SOFTMAX and ours.label == GMM), None)


def _row(timing: Timing, twin: Timing | None) -> JSON:
    contender = timing.contender
    return {
        "head": contender.label,
        "runtime": contender.runtime,
        "rounds": len(timing.clock),
        "images_per_second": 1 / statistics.median(timing.clock),
        "images_per_processor_second": 1 / statistics.median(timing.processor),
        "p50_ms": 1000 * timing.quantile(0.5),
        "p95_ms": 1000 * timing.quantile(0.95),
        "peak_megabytes": contender.peak_megabytes,
        "ratio": None if twin is None else ratio(timing.clock, twin.clock),
        "processor_ratio": None if twin is None else ratio(timing.processor, twin.processor),
    }


@torch.no_grad()
def _with_statistics(segmenter: Segmenter) -> Segmenter:
    """A segmenter whose batch norms know what passes through them, as after training.

    Without that, random weights make maps of a hundred million (HRNet), and an attention over them becomes a
    choice that rounding decides.
    """
    for layer in segmenter.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the mean of all batches, which are one
    segmenter.train()
    segmenter.features(segmenter.normalise(torch.rand(2, 3, 128, 128)))
    return segmenter


def fitted_looking(name: str, num_classes: int) -> Segmenter:
    """A network of the zoo with random weights and mixtures: for questions that training does not change."""
    torch.manual_seed(0)
    segmenter = _with_statistics(build(name, num_classes=num_classes)).eval()
    mixture = segmenter.mixture
    assert mixture is not None
    mixture.means.copy_(mixture.coordinates.valid_means(torch.randn_like(mixture.means)))
    mixture.variances.uniform_(0.05, 0.2)
    return segmenter
