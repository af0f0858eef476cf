import copy
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

import gmmseg
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.samplers import ClassBalancedSampler
from gmmseg.data.scenes import Scenes
from gmmseg.data.transforms import training_transform
from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM
from gmmseg.mixture.em_settings import PRESETS
from gmmseg.models.heads import HeadSettings
from gmmseg.models.huggingface import swin_config, swin_mask2former
from gmmseg.samples import collate
from gmmseg.training.checkpoint import find_checkpoint, list_checkpoints, load_checkpoint
from gmmseg.training.optim import make_optimization
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Interrupted, Trainer, TrainingDiverged

SETTINGS = TrainSettings(
    steps=6,
    batch_size=2,
    log_every=1,
    save_every=3,
    validate_every=3,
    warmup_steps=2,
    backbone_multiplier=1.0,
)


class Cached:
    """Scenes drawn once for all tests of this file."""

    name, split, root, label_space = "scenes", "train", None, Scenes("train").label_space
    samples = [Scenes("train", size=(32, 48))[index] for index in range(5)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def make_trainer(
    folder,
    settings=SETTINGS,
    head="default",
    validate=None,
    dataset=None,
    scale=(0.5, 2.0),
    em=None,
    workers=0,
    balanced=False,
):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    segmenter = gmmseg.build("tiny_unet", num_classes=10, head=head)
    loader = EpochLoader(
        AugmentedDataset(dataset or Cached(), training_transform((32, 48), scale=scale)),
        ClassBalancedSampler(np.ones((5, 10), int)) if balanced else ShuffledSampler(5),
        settings.batch_size,
        workers=workers,
        prepare=accelerator.prepare_data_loader,
    )
    choices = replace(PRESETS["reference" if head == "reference" else "default"], **(em or {}))
    em_step = OnlineEM(segmenter.mixture, choices) if segmenter.mixture is not None else None
    optimization = make_optimization(segmenter, settings, em_step, accelerator.prepare)
    return Trainer(segmenter, loader, optimization, accelerator, settings, folder, validate)


class PowerCut(Exception):
    pass


class StopsAfter:
    """A loader that ends the run when more than ``count`` batches are asked for, in whatever epoch."""

    def __init__(self, loader, count):
        self.loader, self.left = loader, count

    def set_epoch(self, epoch):
        self.loader.set_epoch(epoch)

    def __iter__(self):
        for batch in self.loader:
            if self.left == 0:
                raise PowerCut
            self.left -= 1
            yield batch


def entries(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("head", "change", "em", "workers", "balanced"),
    [
        ("default", {}, {}, 0, False),
        ("softmax", {"optimizer": "sgd"}, {}, 0, False),
        ("default", {"ema": 0.9, "softmax_steps": 7, "accumulate": 2}, {}, 0, True),
        ("default", {"optimizer": "sgd"}, {"reseed": True}, 1, False),
        ("reference", {}, {"memory_size": 20, "estimate_prior": True}, 0, True),
    ],
    ids=["plain", "softmax-sgd", "ema-warm-up-balanced", "sgd-reseed-workers", "queue-balanced"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, head, change, em, workers, balanced):
    """Over five epochs of two batches, stopped twice: at step 5 and at step 8, in the middle of an epoch."""
    settings = replace(SETTINGS, steps=10, save_every=1, **change)
    parts = {"head": head, "em": em, "workers": workers, "balanced": balanced}
    expected = make_trainer(tmp_path / "whole", settings, **parts).run()
    for steps in (5, 3):
        trainer = make_trainer(tmp_path / "parts", settings, **parts)
        torch.manual_seed(99)  # whatever the new process did before
        if steps == 3:
            trainer.load_state_dict(load_checkpoint(find_checkpoint(tmp_path / "parts")))
        trainer.loader = StopsAfter(trainer.loader, trainer.batches_done + steps * settings.accumulate)
        with pytest.raises(PowerCut):
            trainer.run()
    last = make_trainer(tmp_path / "parts", settings, **parts)
    last.load_state_dict(load_checkpoint(find_checkpoint(tmp_path / "parts")))
    assert last.step == 8
    resumed = last.run()
    for name, value in expected.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("softmax_steps", [0, 8])
def test_a_checkpoint_of_an_earlier_version_is_resumed_exactly(tmp_path, softmax_steps):
    """It has the warm-up classifier, or None, where the state of the loss is now; resumed in the warm-up."""
    settings = replace(SETTINGS, softmax_steps=softmax_steps)
    expected = make_trainer(tmp_path / "whole", settings).run()
    state = load_checkpoint(tmp_path / "whole" / "checkpoints" / "step_00000003.pt")
    state["warm_classifier"] = state.pop("loss") or None
    assert (state["warm_classifier"] is None) == (softmax_steps == 0)
    trainer = make_trainer(tmp_path / "resumed", settings)
    for parameter in trainer.loss.parameters():
        parameter.data.fill_(7.0)
    trainer.load_state_dict(state)
    resumed = trainer.run()
    for name, value in expected.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_warm_up_without_its_classifier_is_not_resumed(tmp_path):
    trainer = make_trainer(tmp_path, replace(SETTINGS, softmax_steps=4))
    with pytest.raises(RuntimeError, match="weight"):
        trainer.load_state_dict({**trainer.state_dict(), "loss": {}})


def test_training_lowers_the_loss_and_logs_it(tmp_path):
    settings = replace(SETTINGS, steps=30, learning_rate=3e-3, save_every=100)
    make_trainer(tmp_path, settings).run()
    losses = [entry["loss"] for entry in entries(tmp_path) if entry["kind"] == "train"]
    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert {"learning_rate", "images_per_second", "em", "em_seconds"} <= set(entries(tmp_path)[-1])
    assert entries(tmp_path)[-1]["em"]["log_likelihood"] == pytest.approx(0, abs=1e4)


def test_accumulated_batches_give_the_gradient_of_one_large_batch(tmp_path):
    """With norms in evaluation mode; whatever each batch has labelled."""

    class HalfLabelled(Cached):
        samples = [replace(s, labels=s.labels.clone()) for s in Cached.samples]

    for index, sample in enumerate(HalfLabelled.samples):
        sample.labels[: 7 * index] = IGNORE
    gradients = []
    for batch_size, accumulate in ((4, 1), (2, 2)):
        settings = replace(SETTINGS, steps=1, batch_size=batch_size, accumulate=accumulate)
        trainer = make_trainer(tmp_path / str(batch_size), settings, dataset=HalfLabelled(), scale=(1.0, 1.0))
        trainer._set_train_mode = lambda trainer=trainer: trainer.network.eval()
        trainer.optimizer.zero_grad = lambda: None
        trainer.run()
        gradients.append([p.grad.clone() for p in trainer.segmenter.parameters() if p.grad is not None])
    for one, two in zip(*gradients):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)


def test_mixtures_move_only_in_em_and_the_twin_has_none(tmp_path):
    trainer = make_trainer(tmp_path, replace(SETTINGS, steps=1))
    before = trainer.segmenter.mixture.means.clone()
    trainer.em.step = lambda *batch, forgetting_scale: None
    trainer.run()
    assert torch.equal(trainer.segmenter.mixture.means, before)
    assert make_trainer(tmp_path, head="softmax").em is None


def test_em_hears_how_fast_the_network_still_learns(tmp_path):
    """As the learning rate declines, its warm-up apart, from one towards zero."""
    trainer = make_trainer(tmp_path, replace(SETTINGS, steps=4, warmup_steps=3, power=1.0))
    heard = []
    trainer.em.step = lambda *batch, forgetting_scale: heard.append(forgetting_scale)
    trainer.run()
    assert heard == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_a_frozen_backbone_does_not_move_nor_do_its_norms(tmp_path):
    trainer = make_trainer(tmp_path, replace(SETTINGS, backbone_multiplier=0.0))
    before = {name: value.clone() for name, value in trainer.segmenter.backbone.state_dict().items()}
    head_before = trainer.segmenter.head.projection.weight.clone()
    trainer.run()
    for name, value in trainer.segmenter.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not torch.equal(trainer.segmenter.head.projection.weight, head_before)


def test_best_weights_are_those_of_the_best_validation(tmp_path):
    scores = iter([0.9, 0.2])
    trainer = make_trainer(tmp_path, validate=lambda segmenter: {"score": next(scores)})
    kept = {}
    save = gmmseg.Segmenter.save_pretrained

    def remember(segmenter, folder):
        kept["step"] = trainer.step
        save(segmenter, folder)

    trainer.segmenter.save_pretrained = lambda folder: remember(trainer.segmenter, folder)
    trainer.run()
    assert kept["step"] == 3
    assert [entry["score"] for entry in entries(tmp_path) if entry["kind"] == "validation"] == [0.9, 0.2]
    gmmseg.from_pretrained(tmp_path / "best")


def test_a_run_whose_time_is_over_ends_like_one_at_its_last_step(tmp_path):
    validated = []
    trainer = make_trainer(tmp_path, validate=lambda model: validated.append(trainer.step) or {"score": 1.0})
    trainer.run(lambda: trainer.step >= 2)
    assert trainer.step == 2
    assert validated == [2]
    assert find_checkpoint(tmp_path).name == "step_00000002.pt"
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [each["step"] for each in entries if each["kind"] == "train"] == [1, 2]


def test_a_stop_request_saves_and_leaves(tmp_path):
    def validate(segmenter):
        os.kill(os.getpid(), signal.SIGINT)
        return {"score": 0.0}

    trainer = make_trainer(tmp_path, replace(SETTINGS, save_every=100), validate=validate)
    with pytest.raises(Interrupted, match="stopped at step 3"):
        trainer.run()
    assert find_checkpoint(tmp_path).name == "step_00000003.pt"


def test_a_loss_that_is_not_finite_stops_with_the_batch_named(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.segmenter.head.projection.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match=r"step 0 on the batch scenes_train_\d+"):
        trainer.run()
    assert list((tmp_path / "checkpoints").glob("diverged_*.pt"))


class NaNAt:
    """Turns one gradient into NaN before the optimizer's step ``step``, counted from 1."""

    def __init__(self, trainer, step):
        self.trainer, self.step, self.take = trainer, step, trainer.optimizer.step
        trainer.optimizer.step = self

    def __call__(self):
        if self.trainer.step == self.step - 1:
            next(iter(self.trainer.segmenter.parameters())).grad.view(-1)[0] = float("nan")
        self.take()


@pytest.mark.parametrize(("ema", "validated"), [(None, True), (0.5, True), (None, False)])
def test_a_gradient_that_is_not_finite_in_the_last_step_leaves_the_last_good_weights(
    tmp_path, ema, validated
):
    """best/ and the checkpoint before it stay as they are; final/ is not reached."""
    scores = iter([0.1, 0.2])
    trainer = make_trainer(
        tmp_path,
        replace(SETTINGS, ema=ema),
        validate=(lambda model: {"score": next(scores)}) if validated else None,
    )
    NaNAt(trainer, 6)
    with pytest.raises(TrainingDiverged, match=r"weights are not finite: .* at step 6; .*step_00000003\.pt"):
        trainer.run()
    (kept,) = list_checkpoints(tmp_path / "checkpoints")
    assert kept.name == "step_00000003.pt"
    saved = load_checkpoint(kept)["segmenter"]
    assert all(value.isfinite().all() for value in saved.values() if value.is_floating_point())
    if validated:
        best = gmmseg.from_pretrained(tmp_path / "best").state_dict()
        assert all(value.isfinite().all() for value in best.values() if value.is_floating_point())


def test_a_resumed_run_takes_rates_from_its_settings_and_moments_from_the_checkpoint(tmp_path):
    settings = replace(SETTINGS, steps=3, optimizer="sgd", warmup_steps=0)
    make_trainer(tmp_path, settings).run()
    changed = replace(settings, steps=6, learning_rate=0.5, weight_decay=0.25, momentum=0.5)
    trainer = make_trainer(tmp_path, changed)
    state = load_checkpoint(find_checkpoint(tmp_path))
    trainer.load_state_dict(state)
    for group in trainer.optimizer.param_groups:
        assert group["momentum"] == 0.5
        assert group["lr"] == pytest.approx(group["initial_lr"] * 0.5**0.9)
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.25, 0.0}
    moments = trainer.optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(moments, state["optimizer"]["state"][0]["momentum_buffer"])
    trainer.run()
    assert trainer.step == 6


@pytest.mark.parametrize(("pause", "interrupts"), [(0.0, False), (10.0, True)])
def test_a_repeated_signal_is_one_request_and_a_later_one_interrupts(
    tmp_path, monkeypatch, pause, interrupts
):
    """Launchers pass on the Ctrl-C that their processes have had from the terminal."""
    clock = iter([100.0, 100.0 + pause])
    monkeypatch.setattr("gmmseg.training.stop_requests.time.monotonic", lambda: next(clock))

    def validate(segmenter):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"score": 0.0}

    trainer = make_trainer(tmp_path, replace(SETTINGS, save_every=100), validate=validate)
    with pytest.raises(KeyboardInterrupt) as stopped:
        trainer.run()
    assert isinstance(stopped.value, Interrupted) != interrupts
    assert bool(find_checkpoint(tmp_path)) != interrupts


def test_a_step_of_mask2former_matches_each_layer_once_and_resumes_exactly(tmp_path, monkeypatch):
    """Losses and EM share the match; one of the two batches of a step has no label at all."""
    blank = replace(Cached.samples[1], labels=torch.full_like(Cached.samples[1].labels, IGNORE))
    batches = [collate([Cached.samples[0]]), collate([blank])]

    def made():
        torch.manual_seed(0)
        network = swin_mask2former(swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), 10, None)
        segmenter = gmmseg.convert(network, head=HeadSettings(components=2, dim=8))
        accelerator, em = Accelerator(cpu=True), OnlineEM(segmenter.mixture)
        settings = replace(SETTINGS, accumulate=2, component_weight=0.5)
        optimization = make_optimization(segmenter, settings, em, accelerator.prepare)
        return Trainer(segmenter, batches, optimization, accelerator, settings, tmp_path)

    trainer = made()
    matcher, calls = type(trainer.segmenter.criterion.matcher), []
    forward = matcher.forward
    monkeypatch.setattr(matcher, "forward", lambda *given: calls.append(len(given[1])) or forward(*given))
    report = trainer.train_step(batches)
    assert report.terms.keys() == {"loss", "posterior", "mask", "dice", "component", "likelihood"}
    layers = trainer.segmenter.features.network.config.decoder_layers
    assert calls.count(1) == layers, "one for each layer of the batch with labels"
    resumed = made()
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    again = [each.train_step(batches).terms for each in (trainer, resumed)]
    assert again[0] == again[1]
    states = [each.segmenter.state_dict() for each in (trainer, resumed)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_an_all_ignored_batch_is_survived(tmp_path):
    class Unlabelled(Cached):
        samples = [replace(s, labels=torch.full_like(s.labels, IGNORE)) for s in Cached.samples]

    trained = make_trainer(tmp_path, dataset=Unlabelled()).run()
    assert all(value.isfinite().all() for value in trained.state_dict().values())


def test_a_class_never_seen_is_warned_about(tmp_path, capsys):
    class OneClass(Cached):
        samples = [replace(s, labels=torch.zeros_like(s.labels)) for s in Cached.samples]

    trainer = make_trainer(tmp_path, replace(SETTINGS, steps=1), dataset=OneClass())
    trainer.segmenter.label_names = tuple("abcdefghij")
    trainer.step = 300
    trainer.settings = replace(SETTINGS, steps=301)
    trainer.run()
    assert "no pixel of these classes was seen: b, c, d" in capsys.readouterr().out
