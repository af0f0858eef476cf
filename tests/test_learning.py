"""A short training from scratch on small built-in scenes learns to label and to doubt."""

import pytest
import torch
from accelerate import Accelerator

import gmmseg
from gmmseg.data import Scenes, ScenesAnomaly
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.cached import CachedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.transforms import training_transform
from gmmseg.evaluation.evaluator import evaluate_anomaly, evaluate_closed_set
from gmmseg.evaluation.scores import MaxLogit, NegativeLogLikelihood
from gmmseg.inference import Predictor
from gmmseg.mixture import OnlineEM
from gmmseg.training.optim import make_optimization
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Trainer

SIZE = (48, 80)
SETTINGS = TrainSettings(
    steps=300, batch_size=8, learning_rate=1e-2, backbone_multiplier=1.0, warmup_steps=10, save_every=10_000
)


@pytest.mark.parametrize(("head", "score"), [("default", NegativeLogLikelihood()), ("softmax", MaxLogit())])
def test_reaches_its_floors(tmp_path, head, score):
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=10, head=head)
    scenes = CachedDataset(Scenes("train", size=SIZE, length=120))
    transform = training_transform(SIZE, scale=(0.75, 1.5))
    loader = EpochLoader(AugmentedDataset(scenes, transform), ShuffledSampler(120), SETTINGS.batch_size)
    em, accelerator = segmenter.mixture and OnlineEM(segmenter.mixture), Accelerator(cpu=True)
    optimization = make_optimization(segmenter, SETTINGS, em, accelerator.prepare)
    trainer = Trainer(segmenter, loader, optimization, accelerator, SETTINGS, tmp_path)
    predictor = Predictor(trainer.run())
    closed = evaluate_closed_set(predictor, Scenes("test", size=SIZE, length=30))["metrics"]
    strange = evaluate_anomaly(
        predictor, ScenesAnomaly("test", size=SIZE, length=60), [score], intervals=False
    )
    auroc = strange["scores"][score.name]["auroc"]
    # An untrained network has an mIoU of about 0.03 and an AUROC of about 0.5.
    assert closed["pixel_accuracy"] > 0.6
    assert closed["miou"] > 0.22
    assert auroc > 0.58
