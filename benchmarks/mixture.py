"""The mixture engine against a softmax head and against the straightforward loop, in one run.

    python benchmarks/mixture.py            prints the table, writes benchmarks/results/mixture.json

Ratios within one run are what counts; seconds are those of the machine named in the results file. ``gmm`` is
the paper's head, the best component of each class; ``gmm_sum`` that of the default, the sum of all.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gmmseg.allocator import keep_freed_memory
from gmmseg.mixture import PRESETS, ClassMixture, FeatureQueue, OnlineEM
from gmmseg.models import GMMHead, SoftmaxHead

RESULTS = Path(__file__).parent / "results" / "mixture.json"
SETS = {"cityscapes": 19, "ade20k": 150}
K, D, CHANNELS, BATCH, SIDE = 5, 64, 256, 2, 128


def seconds(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each action; the actions take turns, so that noise falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def loop_step(mixture: ClassMixture, queue: Tensor, cursor: Tensor, points: Tensor, labels: Tensor) -> None:
    """One EM step written straightforwardly: a Python loop over classes and components, a queue of points.

    The same work as `OnlineEM.step` with the paper's preset: sample, Sinkhorn per class, queue, moments
    over the queue, momentum.
    """
    capacity = queue.shape[2]
    for c in labels.unique().tolist():
        own = points[labels == c]
        own = own[torch.randperm(len(own))[: 100 * BATCH]]
        log_densities = torch.stack(
            [
                torch.distributions.Normal(mixture.means[c, k], mixture.variances[c, k].sqrt())
                .log_prob(own)
                .sum(-1)
                for k in range(K)
            ],
            dim=-1,
        )
        plan = log_densities / 0.05
        for _ in range(10):
            plan = plan - plan.logsumexp(0, keepdim=True)
            plan = plan - plan.logsumexp(1, keepdim=True)
        component = plan.argmax(-1)
        for k in range(K):
            arriving = own[component == k]
            slots = (cursor[c, k] + torch.arange(len(arriving))) % capacity
            queue[c, k, slots] = arriving
            cursor[c, k] += len(arriving)
            held = queue[c, k, : min(int(cursor[c, k]), capacity)]
            if len(held):
                mixture.means[c, k].lerp_(held.mean(0), 0.001)
                mixture.variances[c, k].lerp_(held.var(0, correction=0).clamp_min(1e-4), 0.001)


def measure(num_classes: int, rounds: int) -> dict:
    torch.manual_seed(0)
    features = torch.randn(BATCH, CHANNELS, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, num_classes, (BATCH * SIDE * SIDE,))
    mixture = ClassMixture(num_classes, K, D)
    gmm = GMMHead(CHANNELS, mixture, projection="linear", link="bayes")
    summed = GMMHead(CHANNELS, ClassMixture(num_classes, K, D, winner=False), link="affine")
    softmax = SoftmaxHead(CHANNELS, num_classes).to(memory_format=torch.channels_last)

    def forward(head):
        with torch.inference_mode():
            head(features)

    def forward_backward(head):
        inputs = features.detach().requires_grad_()
        logits = head(inputs).logits
        torch.nn.functional.cross_entropy(logits, labels.view(BATCH, SIDE, SIDE)).backward()

    points = torch.randn(BATCH * SIDE * SIDE, D)
    groups = torch.arange(BATCH).repeat_interleave(SIDE * SIDE)
    em = {name: OnlineEM(mixture, PRESETS[name]) for name in ("default", "paper")}
    # The loop's queue is full, though of 1,000 points only: the paper's 32,000 would be slower still.
    queue, cursor = torch.randn(num_classes, K, 1000, D), torch.full((num_classes, K), 1000)
    actions = {
        "softmax_forward": lambda: forward(softmax),
        "gmm_forward": lambda: forward(gmm),
        "gmm_sum_forward": lambda: forward(summed),
        "softmax_forward_backward": lambda: forward_backward(softmax),
        "gmm_forward_backward": lambda: forward_backward(gmm),
        "em_step_statistics": lambda: em["default"].step(points, labels, groups),
        "em_step_queue": lambda: em["paper"].step(points, labels, groups),
    }
    taken = seconds(actions, rounds)
    taken |= seconds({"em_step_loop": lambda: loop_step(mixture, queue, cursor, points, labels)}, 2)
    return {
        "seconds": taken,
        "ratios": {
            "gmm_over_softmax_forward": taken["gmm_forward"] / taken["softmax_forward"],
            "gmm_sum_over_softmax_forward": taken["gmm_sum_forward"] / taken["softmax_forward"],
            "gmm_over_softmax_forward_backward": taken["gmm_forward_backward"]
            / taken["softmax_forward_backward"],
            "loop_over_em_step": taken["em_step_loop"] / taken["em_step_statistics"],
            "loop_over_em_step_queue": taken["em_step_loop"] / taken["em_step_queue"],
            "em_step_over_gmm_forward_backward": taken["em_step_statistics"] / taken["gmm_forward_backward"],
        },
        "largest_tensor_elements": {"n*c*k": BATCH * SIDE * SIDE * num_classes * K},
        "training_state_bytes": {
            "statistics": em["default"].memory.nbytes(),
            "queue_of_32000": _queue_bytes(num_classes, 32_000),
        },
        "peak_memory_mib": {
            name: _peak_memory(num_classes, name) for name in ("softmax", "gmm", "em_statistics", "em_queue")
        },
    }


def _queue_bytes(num_classes: int, capacity: int) -> int:
    """Bytes of a full-size queue, from one a thousand times smaller (its slots dominate and scale)."""
    small = FeatureQueue(num_classes, K, D, capacity=capacity // 1000)
    return small.nbytes() - small.slots.nbytes + small.slots.nbytes * 1000


def _peak_memory(num_classes: int, what: str) -> float:
    """Peak resident memory (MiB) of one forward+backward or EM step, in a process of its own."""
    command = [sys.executable, __file__, "--peak", what, "--classes", str(num_classes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak(what: str, num_classes: int) -> float:
    """Peak resident memory (MiB) of one piece of work beyond what its inputs hold."""
    mixture = ClassMixture(num_classes, K, D)
    points = torch.randn(BATCH * SIDE * SIDE, D)
    labels = torch.randint(0, num_classes, (BATCH * SIDE * SIDE,))
    features = torch.randn(BATCH, CHANNELS, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _resident("VmRSS")
    if what.startswith("em"):
        OnlineEM(mixture, PRESETS["default" if what == "em_statistics" else "paper"]).step(points, labels)
    else:
        head = SoftmaxHead(CHANNELS, num_classes) if what == "softmax" else GMMHead(CHANNELS, mixture)
        logits = head(features.requires_grad_()).logits
        torch.nn.functional.cross_entropy(logits, labels.view(BATCH, SIDE, SIDE)).backward()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """A line of /proc/self/status in MiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--classes", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak(arguments.peak, arguments.classes))
        return
    keep_freed_memory()  # as commands do
    results = {name: measure(classes, arguments.rounds) for name, classes in SETS.items()}
    for name, result in results.items():
        print(
            f"\n{name}: c {SETS[name]}, k {K}, d {D}, batch {BATCH}, {SIDE}x{SIDE} map of {CHANNELS} channels"
        )
        for group in ("seconds", "ratios", "training_state_bytes", "peak_memory_mib"):
            for key, value in result[group].items():
                print(f"  {group:<22}{key:<36}{value:>16,.4f}")
    RESULTS.parent.mkdir(exist_ok=True)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    RESULTS.write_text(
        json.dumps({"command": "python benchmarks/mixture.py", "machine": machine, **results}, indent=1)
    )


if __name__ == "__main__":
    main()
