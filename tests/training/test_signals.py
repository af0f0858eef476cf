"""Several processes stop together when one of them is asked to."""

import subprocess
import sys

from gmmseg.training.checkpoint import load_checkpoint

WORKER = """
import os, signal, sys
from pathlib import Path
import torch
from accelerate import Accelerator
import gmmseg
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.scenes import Scenes
from gmmseg.data.transforms import training_transform
from gmmseg.mixture import OnlineEM
from gmmseg.training.optim import make_optimization
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Interrupted, Trainer

out, batch_size = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
settings = TrainSettings(steps=3, batch_size=batch_size, warmup_steps=0, optimizer="sgd", learning_rate=0.05,
                         backbone_multiplier=1.0)
segmenter = gmmseg.build("tiny_unet", num_classes=10)
scenes = Scenes("train", size=(32, 48), length=8)
dataset = AugmentedDataset(scenes, training_transform((32, 48), scale=(1.0, 1.0)))
loader = EpochLoader(dataset, ShuffledSampler(8), batch_size, prepare=accelerator.prepare_data_loader)
optimization = make_optimization(segmenter, settings, OnlineEM(segmenter.mixture), accelerator.prepare)
trainer = Trainer(segmenter, loader, optimization, accelerator, settings, out)
if accelerator.process_index == 1:
    report = trainer._report
    trainer._report = lambda *told: (report(*told), os.kill(os.getpid(), signal.SIGTERM))
try:
    trainer.run()
except Interrupted as stopped:
    (out / f"stopped{accelerator.process_index}").write_text(str(stopped))
    accelerator.end_training()
    sys.exit()
accelerator.end_training()
"""


def run(tmp_path, name, processes, batch_size):
    """Run the worker on so many processes; returns the folder they wrote to."""
    out = tmp_path / name
    out.mkdir()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    subprocess.run([*launcher, str(script), str(out), str(batch_size)], check=True, timeout=120)
    return out


def test_a_signal_to_one_process_stops_both_at_the_same_step_with_the_state_saved(tmp_path):
    out = run(tmp_path, "stopped", 2, 2)
    path = out / "checkpoints" / "step_00000001.pt"
    for rank in range(2):
        assert (out / f"stopped{rank}").read_text() == f"stopped at step 1, the state is in {path}"
    assert load_checkpoint(path)["step"] == 1
