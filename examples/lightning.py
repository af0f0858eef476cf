"""The default recipe as a LightningModule: EM beside the optimizer, saved and restored with the checkpoints.

    pip install 'gmmseg[lightning]'
    python examples/lightning.py                      # built-in scenes, a minute or two on a CPU
    python examples/lightning.py --resume lightning_example/last.ckpt    # go on after it was stopped

Lightning moves the network; after each of its steps `OnlineEM` moves the mixtures. Lightning's checkpoints
also hold the state of EM, so that a resumed run is the one that was never stopped. In the end a density is
put beside the head and the model is calibrated, as `gmmseg train` does.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# Before Lightning, which imports torchvision: gmmseg repairs one built for CUDA beside a torch without.
import gmmseg

# isort: split
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from gmmseg.data import AugmentedDataset, Batch, EpochLoader, Scenes, ShuffledSampler
from gmmseg.data.transforms import training_transform
from gmmseg.mixture.em import EMState
from gmmseg.models.outputs import EMPoints
from gmmseg.training import TrainSettings, decline, make_optimizer, make_schedule

SIZE = (96, 160)


class Stream:
    """Batches without end, from where a run is at step ``first``."""

    def __init__(self, loader: EpochLoader, first: int) -> None:
        self.loader, self.first = loader, first

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = divmod(self.first, len(self.loader))
        while True:
            self.loader.set_epoch(epoch)
            yield from (batch for index, batch in enumerate(self.loader) if index >= done)
            epoch, done = epoch + 1, 0


class GenerativeSegmenter(pl.LightningModule):
    """Trains ``segmenter`` on ``dataset`` as ``settings`` say: loss of two terms, the link's own rate, EM."""

    def __init__(self, segmenter: gmmseg.Segmenter, dataset: Scenes, settings: TrainSettings) -> None:
        super().__init__()
        self.segmenter, self.settings = segmenter, settings
        augmented = AugmentedDataset(dataset, training_transform(dataset.size, scale=(0.75, 1.5)))
        self.loader = EpochLoader(augmented, ShuffledSampler(len(dataset)), settings.batch_size)
        self.em: gmmseg.OnlineEM | None = None
        self.em_state: EMState | None = None
        self.points: EMPoints | None = None

    def train_dataloader(self) -> Stream:
        return Stream(self.loader, self.trainer.global_step)

    def configure_optimizers(self) -> dict:
        """The groups of `gmmseg train`: backbone, link and everything else have their own learning rates."""
        optimizer = make_optimizer(self.segmenter, self.settings)
        schedule = make_schedule(optimizer, self.settings)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Here the mixtures are on their device, so EM can be made; with what a checkpoint knows of it."""
        assert self.segmenter.mixture is not None
        self.em = gmmseg.OnlineEM(self.segmenter.mixture, gmmseg.PRESETS["default"], seed=self.settings.seed)
        if self.em_state is not None:
            self.em.load_state_dict(self.em_state)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        output = self.segmenter(batch.images)
        terms = self.segmenter.losses(output, batch.labels, self.settings.extra_terms, self.em)
        self.points = self.segmenter.em_points(output, batch.labels)
        return torch.stack([self.settings.weight(name) * value for name, value in terms.items()]).sum()

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: torch.optim.Optimizer,
        optimizer_closure: Callable[[], Tensor] | None = None,
    ) -> None:
        """The step of the optimizer, then that of EM.

        Not in ``on_train_batch_end``: Lightning's checkpoints are written before that, and would hold an EM
        that is one step behind the network.
        """
        share = decline(self.trainer.global_step, self.settings)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        assert self.em is not None
        assert self.points is not None
        self.em.step(*self.points, forgetting_scale=share)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        assert self.em is not None
        checkpoint["em"] = self.em.state_dict()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.em_state = checkpoint["em"]


def train(
    module: GenerativeSegmenter, folder: Path, *, resume: Path | None = None, until: int | None = None
) -> None:
    """Train to the last step of the settings, or ``until`` one; the newest checkpoint is last.ckpt."""
    settings = module.settings
    checkpoints = ModelCheckpoint(
        folder, save_last=True, save_top_k=0, every_n_train_steps=settings.save_every
    )
    trainer = pl.Trainer(
        max_steps=settings.steps if until is None else until,
        devices=1,
        logger=False,
        callbacks=[checkpoints],
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=resume)


def main(words: Sequence[str] | None = None) -> gmmseg.Segmenter:
    """Train on the built-in scenes, finish as `gmmseg train` does, save; returns the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=350, help="Steps of the whole run.")
    parser.add_argument("--images", type=int, default=600, help="Scenes to train on.")
    parser.add_argument("--resume", type=Path, help="A checkpoint of the same run.")
    parser.add_argument("--out", type=Path, default=Path("lightning_example"), help="Folder for everything.")
    options = parser.parse_args(words)

    torch.manual_seed(0)
    dataset = Scenes("train", size=SIZE, length=options.images)
    settings = TrainSettings(options.steps, learning_rate=5e-3, backbone_multiplier=1.0, save_every=50)
    segmenter = gmmseg.build("tiny_unet", class_names=dataset.label_space.names)
    train(GenerativeSegmenter(segmenter, dataset, settings), options.out, resume=options.resume)

    model = gmmseg.fit(segmenter.eval().cpu(), dataset)
    model.calibration = gmmseg.calibrate(model, Scenes("val", size=SIZE))
    model.save_pretrained(options.out / "weights")
    print(f"weights in {options.out / 'weights'}; the threshold {model.calibration.promise_text()}")
    return model


if __name__ == "__main__":
    main()
