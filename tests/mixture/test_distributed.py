"""One process equals two: run under torchrun with gloo, split two ways."""

import subprocess
import sys
from pathlib import Path

import torch

WORKER = """
import sys
import torch
import torch.distributed as dist
from dataclasses import replace
from gmmseg.mixture import PRESETS, ClassMixture, OnlineEM, WhitenedSphere

out, split = sys.argv[1], int(sys.argv[2])
if "RANK" in __import__("os").environ:
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
images, pixels, d = 6, 300, 8
for name, preset in PRESETS.items():
    whitened = name == "default"
    coordinates = WhitenedSphere(d) if whitened else None
    mixture = ClassMixture(4, 3, d, coordinates=coordinates)
    em = OnlineEM(mixture, replace(preset, samples_per_class=20, update_every=1, mean_momentum=0.5), seed=3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        points = torch.randn(images, pixels, d - whitened, generator=generator)
        labels = torch.randint(0, 4, (images, pixels), generator=generator)
        labels[2] = 255
        if dist.is_initialized():
            mine = slice(0, split) if rank == 0 else slice(split, images)
            points, labels = points[mine], labels[mine]
        groups = torch.arange(len(points)).repeat_interleave(pixels)
        em.step(mixture.points(points.flatten(0, 1)), labels.reshape(-1), groups)
    torch.save({"means": mixture.means, "variances": mixture.variances}, f"{out}/{name}-{rank}.pt")
if dist.is_initialized():
    dist.destroy_process_group()
"""


def run(tmp_path, folder, split, processes):
    (tmp_path / folder).mkdir()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    subprocess.run([*launcher, str(script), str(tmp_path / folder), str(split)], check=True, timeout=180)
    return {file.stem: torch.load(file) for file in Path(tmp_path / folder).glob("*.pt")}


def test_the_mixture_does_not_depend_on_how_the_batch_is_split(tmp_path):
    alone = run(tmp_path, "alone", 0, 1)
    for split in (3, 1):
        parted = run(tmp_path, f"split{split}", split, 2)
        for name in ("paper", "reference", "default"):
            for rank in (0, 1):
                for key in ("means", "variances"):
                    torch.testing.assert_close(
                        parted[f"{name}-{rank}"][key], alone[f"{name}-0"][key], atol=1e-5, rtol=1e-5
                    )
