"""Two processes that share the images come to the figures of one that sees them all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from gmmseg.evaluation import AnomalyCurve, CalibrationError, ComponentMetrics, ConfusionMatrix

WORKER = """
import json, os, sys
import torch
import torch.distributed as dist
sys.path.insert(0, os.environ["TEST_FOLDER"])
from test_pooled import figures

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
# rank 0 sees four images of five, rank 1 one; kept pixels, states and summaries differ in size
found = figures([0, 1, 2, 3] if rank == 0 else [4])
if rank == 1:
    open(sys.argv[2], "w").write(json.dumps(found))
dist.destroy_process_group()
"""


def image(index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores and mask (h w), posterior (1 c h w) and labels (1 h w)."""
    generator = torch.Generator().manual_seed(index)
    mask = torch.zeros(40, 50, dtype=torch.uint8)
    mask[5:25, 10 : 20 + index] = 1
    scores = torch.randn(40, 50, generator=generator) + 3 * mask
    posterior = torch.randn(1, 3, 40, 50, generator=generator).softmax(1)
    labels = torch.randint(3, (1, 40, 50), generator=generator)
    return scores, mask, posterior, labels


def figures(indices: list[int]) -> dict:
    curve, small = AnomalyCurve(per_image=True), AnomalyCurve()
    parts, confusion = ComponentMetrics("obstacle", threshold=1.5), ConfusionMatrix(3)
    calibration = CalibrationError(num_classes=3)
    for index in indices:
        scores, mask, posterior, labels = image(index)
        curve.update(scores, mask)
        if index == 4:  # a rank that has seen nothing takes part all the same
            small.update(scores.double(), mask)
        parts.update(scores, mask)
        confusion.update(posterior.argmax(1), labels)
        calibration.update(posterior, labels)
    return {
        "anomaly": curve.compute(),
        "small": small.compute(),
        "counts": curve.counts(),
        "threshold": curve.threshold_at_tpr(0.9),
        "intervals": curve.confidence_intervals(replicates=10),
        "components": parts.compute(),
        "miou": float(confusion.compute()["miou"]),
        "ece": [float(value) for value in calibration.compute().values()],
    }


def test_two_processes_equal_one(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    here = str(Path(__file__).parent)
    environment = {
        "TEST_FOLDER": here,
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, str(script), str(tmp_path / "meeting"), str(tmp_path / "found.json")]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    two = json.loads((tmp_path / "found.json").read_text())
    one = json.loads(json.dumps(figures([0, 1, 2, 3, 4])))
    np.testing.assert_allclose(two.pop("ece"), one.pop("ece"), rtol=1e-12)  # sums of floats in another order
    two["components"]["siou"], one["components"]["siou"] = (
        round(found["components"]["siou"], 12) for found in (two, one)
    )
    assert two == one
