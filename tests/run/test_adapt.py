"""A softmax model becomes generative in the time there is: its backbone stays, files are whole or absent."""

import json
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

import gmmseg
from gmmseg import run
from gmmseg.config import DataSettings
from gmmseg.data import ScenesAnomaly
from gmmseg.data.scenes import Scenes
from gmmseg.inference import Predictor
from gmmseg.models.calibration_file import FUSED
from gmmseg.models.features import FrozenFeatures, begin_anew_
from gmmseg.samples import collate
from gmmseg.training.trainer import Interrupted

page = sys.modules["gmmseg.run.adapt"]
SIZE = (32, 48)
DATA = DataSettings(crop=(32, 32), workers=0)
TRAIN, VAL = Scenes("train", size=SIZE, length=10), Scenes("val", size=SIZE, length=3)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Six steps are enough to see what they change."""
    monkeypatch.setattr(page, "MOST_LOOKS", 1)
    monkeypatch.setattr(page, "LEAST_STEPS", 6)


class Tick:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self, step: float = 1.0) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def softmax(folder, name="tiny_unet", preset="softmax"):
    torch.manual_seed(0)
    model = gmmseg.build(name, preset=preset, class_names=TRAIN.label_space.names)
    model.save_pretrained(folder)
    return str(folder)


def settings(train="decoder"):
    return run.AdaptSettings(train, DATA)


@pytest.mark.parametrize("train", ["decoder", "head"])
def test_it_is_generative_calibrated_and_starts_from_the_softmax_model(tmp_path, train):
    source, said = softmax(tmp_path / "softmax"), []
    found = run.adapt(
        source,
        TRAIN,
        tmp_path / "out",
        run.Clock(150, Tick()),
        settings(train),
        validation=VAL,
        say=said.append,
    )
    before, loaded = run.open_model(source), run.open_model(tmp_path / "out")
    assert loaded.mixture is not None
    assert loaded.density is not None
    assert loaded.calibration == found.model.calibration
    assert loaded.calibration.score == FUSED
    assert loaded.label_names == TRAIN.label_space.names
    assert loaded.companions[0].kind == train
    for name, value in before.backbone.state_dict().items():
        assert torch.equal(loaded.backbone.state_dict()[name], value), name
    own = dict(loaded.features.named_parameters())
    for name, value in before.features.named_parameters():  # statistics of batch norms move in any training
        kept = train == "head" or name.startswith("backbone.")
        assert torch.equal(own[name], value) == kept, name
    assert found.miou_before == run.validate(before, VAL)["miou"]
    assert found.miou_after == run.validate(loaded, VAL)["miou"]
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "README.md",
        "calibration.json",
        "config.json",
        "log.jsonl",
        "model.safetensors",
    ]
    assert any(str(found.plan) in line for line in said)


@pytest.mark.parametrize("train", ["decoder", "head"])
def test_the_softmax_model_teaches_and_is_not_changed(tmp_path, monkeypatch, train):
    """Its own logits, on cached maps as on images, are what training is told to stay near."""
    model = run.open_model(softmax(tmp_path / "softmax"))
    state = {name: each.clone() for name, each in model.state_dict().items()}
    work = page._Work(tmp_path, TRAIN, DATA, settings(train), Accelerator(cpu=True), run.Clock(100))
    trainer, cache = work._trainer(page._with_mixtures(model), model, page.Plan(6, 10, 1, 1, 1, 0.0))
    cache.make(trainer.segmenter)
    trainer.loader.set_epoch(0)
    batch = next(iter(trainer.loader))
    numbers = [int(name.split()[1]) for name in batch.names]
    cache.set_epoch(0)
    images = collate([cache.crops[number] for number in numbers]).images
    with torch.no_grad():
        expected = model(images).logits
    found = trainer._forward(batch)[0].output.teacher_logits
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert "teacher" in trainer.train_step([batch]).terms
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    later = model.head if train == "head" else model  # what is copied and trained after the trial
    assert all(each.requires_grad for each in later.parameters())


def test_the_best_validated_step_is_kept(tmp_path, monkeypatch):
    """Half-way labels are better than at the end, and before training the softmax model's are looked at."""
    states, values = [], iter([0.0, 0.3, 0.9, 0.2])

    def validated(model, dataset):
        value = next(values)
        states.append({name: each.clone() for name, each in model.state_dict().items()})
        return {"score": value, "miou": value}

    monkeypatch.setattr(page, "validate", validated)
    found = run.adapt(
        softmax(tmp_path / "softmax"),
        TRAIN,
        tmp_path / "out",
        run.Clock(150, Tick()),
        settings(),
        validation=VAL,
    )
    assert (found.miou_before, found.miou_after) == (0.3, 0.9)
    assert found.keeps_labels
    state = found.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in states[2].items())
    assert not all(torch.equal(state[name], value) for name, value in states[3].items())


def test_more_time_buys_more_steps_and_then_more_crops(tmp_path, monkeypatch):
    work = page._Work(tmp_path, TRAIN, DATA, settings(), None, run.Clock(100, lambda: 0.0))
    monkeypatch.setattr(page, "MOST_LOOKS", 100)
    costs = page._Costs(crop=0.5, step=1.0, image=0.1)
    short = work.plan(costs, VAL)
    # 0.9 of (100 s less 10 images for the density and four passes over three), 30 % of it for crops.
    assert (short.images, short.crops, short.density_images, short.validation_images) == (10, 5, 10, 3)
    assert short.steps == int(0.9 * (100 - 1.0 - 4 * 3 * 0.1) - 50 * 0.5)
    assert short.seconds_afterwards == pytest.approx(1.0 + 3 * 3 * 0.1)
    slow = work.plan(page._Costs(crop=3.2, step=0.5, image=0.1), VAL)
    assert (slow.images, slow.crops) == (8, 1), "fewer images rather than less than a crop of each"
    work.clock = run.Clock(10_000, lambda: 0.0)
    assert work.plan(costs, VAL).steps == page.MOST_LOOKS * 10 // page.BATCH, "nothing new beyond that"


def test_with_enough_steps_the_decoder_begins_anew(tmp_path, monkeypatch):
    work = page._Work(tmp_path, TRAIN, DATA, settings(), None, run.Clock(100, lambda: 0.0))
    costs = page._Costs(crop=0.5, step=1.0, image=0.1)
    steps = work.plan(costs, VAL).steps
    monkeypatch.setattr(page, "ENOUGH_TO_BEGIN_ANEW", steps)
    assert work.plan(costs, VAL).anew
    assert "of a new decoder" in str(work.plan(costs, VAL))
    work.settings = settings("head")
    assert not work.plan(costs, VAL).anew, "the features stay"
    work.settings = settings()
    monkeypatch.setattr(page, "ENOUGH_TO_BEGIN_ANEW", steps + 1)
    assert not work.plan(costs, VAL).anew


def test_a_new_decoder_is_one_of_new_weights_on_the_same_backbone(tmp_path):
    model = run.open_model(softmax(tmp_path / "softmax"))
    begun = page._with_mixtures(model)
    begin_anew_(begun.features)
    own = dict(begun.features.named_parameters())
    weights = {name: each for name, each in model.features.named_parameters() if each.ndim > 1}
    assert any(not name.startswith("backbone.") for name in weights)
    for name, value in weights.items():
        assert torch.equal(own[name], value) == name.startswith("backbone."), name


def test_too_little_time_says_how_much_it_takes(tmp_path):
    source = softmax(tmp_path / "softmax")
    with pytest.raises(
        ValueError, match=r"minutes are not enough here for 6 steps: give --minutes \d+"
    ) as told:
        run.adapt(source, TRAIN, tmp_path / "out", run.Clock(12, Tick()), settings(), validation=VAL)
    assert not (tmp_path / "out").exists()
    needed = float(str(told.value).split("--minutes ")[1].split()[0])
    found = run.adapt(
        source, TRAIN, tmp_path / "out", run.Clock(60 * needed, Tick()), settings(), validation=VAL
    )
    assert found.plan.steps >= 6


def test_time_that_runs_out_ends_training_and_the_rest_is_done(tmp_path, monkeypatch):
    source, said, clock = softmax(tmp_path / "softmax"), [], run.Clock(150, Tick())
    planned = page._Work.plan

    def then_slow(*arguments):
        plan = planned(*arguments)
        clock.now.step = 200.0
        return plan

    monkeypatch.setattr(page._Work, "plan", then_slow)
    found = run.adapt(source, TRAIN, tmp_path / "out", clock, settings(), validation=VAL, say=said.append)
    assert any(f"of {found.plan.steps} steps" in line for line in said)
    assert run.open_model(tmp_path / "out").calibration is not None


def test_a_density_is_fitted_on_as_many_images_as_there_is_still_time_for(tmp_path):
    work = page._Work(tmp_path, TRAIN, DATA, settings(), None, run.Clock(100, lambda: 0.0))
    plan = page.Plan(
        steps=6, images=10, crops=1, density_images=50, validation_images=3, seconds_afterwards=1
    )
    assert work.images_in_time(plan) == 50, "as planned, where nothing else is known"
    for image_seconds, expected in ((1.0, 50), (4.0, 100 // 4 - 2 * 3), (50.0, page.BATCH)):
        work.image_seconds = image_seconds
        assert work.images_in_time(plan) == expected


def test_without_validation_images_nothing_is_compared_or_calibrated(tmp_path):
    found = run.adapt(
        softmax(tmp_path / "softmax"), TRAIN, tmp_path / "out", run.Clock(150, Tick()), settings()
    )
    assert (found.miou_before, found.miou_after) == (None, None)
    assert found.keeps_labels
    assert run.open_model(tmp_path / "out").calibration is None


@pytest.mark.parametrize("train", ["decoder", "head"])
def test_a_network_that_cannot_be_split(tmp_path, train):
    """It is trained without a cache, which is said; the head alone on its features, which are cached."""
    source, said = softmax(tmp_path / "softmax", "smp:FPN/mobilenet_v2"), []
    found = run.adapt(
        source,
        TRAIN,
        tmp_path / "out",
        run.Clock(150, Tick()),
        settings(train),
        validation=VAL,
        say=said.append,
    )
    assert (found.plan.crops > 0) == (train == "head")
    assert any("not cached" in line for line in said) == (train == "decoder")
    loaded, before = run.open_model(tmp_path / "out"), run.open_model(source)
    image = VAL[0].image
    assert torch.equal(Predictor(loaded).predict(image).labels, Predictor(found.model).predict(image).labels)
    if train == "head":
        pixels = torch.rand(1, 3, 64, 64)
        assert torch.equal(loaded.features(pixels).main, before.features(pixels).main)
    assert bool(len(loaded.companions)) == (train == "head")


@pytest.mark.parametrize("train", ["decoder", "head"])
def test_labels_are_those_of_the_old_classifier_and_of_the_new_one(tmp_path, train):
    """The old one answers as the softmax model does; the posterior is the mean of both."""
    source = softmax(tmp_path / "softmax")
    run.adapt(source, TRAIN, tmp_path / "out", run.Clock(150, Tick()), settings(train), validation=VAL)
    before, adapted = run.open_model(source), run.open_model(tmp_path / "out")
    images = torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        both, old = adapted(images).logits, before(images).logits
        adapted.companions = torch.nn.ModuleList()
        new = adapted(images).logits
    torch.testing.assert_close(both.softmax(1), (new.softmax(1) + old.softmax(1)) / 2)
    assert not torch.equal(new, old)


def test_frozen_features_are_those_of_the_extractor_and_keep_their_statistics():
    torch.manual_seed(0)
    model = gmmseg.build("deeplabv3plus_efficientnet_lite0", num_classes=3, preset="softmax").eval()
    images = torch.rand(1, 3, 64, 64)
    expected = model.features(images).main
    frozen = FrozenFeatures(model.features).train()
    assert not any(module.training for module in frozen.backbone.modules())
    assert torch.equal(frozen(images).main, expected)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


REFUSED = {
    "tiny_unet": "names a network, not a trained model: train it",
    "smp:Unet/resnet18": "names a network, not a trained model: train it",
    "timm:resnet18": "names a network, not a trained model: train it",
    "runs/nothing": "no such folder 'runs/nothing'",
    "tim:resnet50": "did you mean timm:",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_no_trained_model_is_refused_in_one_line(tmp_path, source):
    with pytest.raises((ValueError, OSError), match=REFUSED[source]) as told:
        run.adapt(source, TRAIN, tmp_path / "out", run.Clock(300), settings())
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_generative_models_unlabelled_sets_and_weights_in_the_way_are_refused(tmp_path):
    generative = softmax(tmp_path / "gmm", preset="default")
    with pytest.raises(ValueError, match=r"is generative already: gmmseg fit puts a density beside its head"):
        run.adapt(generative, TRAIN, tmp_path / "out", run.Clock(300), settings())
    source = softmax(tmp_path / "softmax")
    with pytest.raises(ValueError, match="marks what is unknown"):
        run.adapt(source, ScenesAnomaly("val", size=SIZE), tmp_path / "out", run.Clock(300), settings())
    with pytest.raises(ValueError, match="holds weights already"):
        run.adapt(source, TRAIN, tmp_path / "softmax", run.Clock(300), settings())
    with pytest.raises(ValueError, match="some time to adapt in, got 0 minutes"):
        run.Clock(0)
    with pytest.raises(ValueError, match="train"):
        run.AdaptSettings("all")


@pytest.mark.parametrize("failure", [Interrupted("stopped at step 1"), KeyboardInterrupt(), OSError("disk")])
def test_what_stops_or_fails_leaves_nothing(tmp_path, monkeypatch, failure):
    def fail(*arguments, **words):
        assert (tmp_path / "out" / page.WORKING / "crops").is_dir()
        raise failure

    monkeypatch.setattr(page, "fit_density", fail)
    with pytest.raises(type(failure)) as told:
        run.adapt(softmax(tmp_path / "softmax"), TRAIN, tmp_path / "out", run.Clock(150, Tick()), settings())
    assert not (tmp_path / "out").exists()
    if isinstance(failure, Interrupted):
        assert "nothing was written" in str(told.value)


def test_a_run_in_the_way_and_leftovers_of_a_killed_one(tmp_path):
    source = softmax(tmp_path / "softmax")
    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "run" / "best" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds trained weights"):
        run.adapt(source, TRAIN, tmp_path / "run", run.Clock(150, Tick()), settings())
    (tmp_path / "out" / page.WORKING / "checkpoints").mkdir(parents=True)
    run.adapt(source, TRAIN, tmp_path / "out", run.Clock(150, Tick()), settings())
    assert not (tmp_path / "out" / page.WORKING).exists()


def test_a_folder_of_another_library_hides_no_class_and_is_not_generative(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "segformer"}')
    assert run.judged_sets(tmp_path, TRAIN) == [TRAIN]
    assert not page.is_generative(tmp_path)


def test_crops_are_those_of_the_run_or_two_thirds_of_an_image(tmp_path):
    model = run.open_model(softmax(tmp_path / "softmax"))
    like = page._crops_like(
        str(tmp_path / "softmax"), model, Scenes("train", size=(90, 160), length=1), run.AdaptSettings()
    )
    assert like.crop == (64, 96)
    model.inference = gmmseg.models.InferenceSettings(short_side=180)
    like = page._crops_like(
        str(tmp_path / "softmax"), model, Scenes("train", size=(90, 160), length=1), run.AdaptSettings()
    )
    assert (like.crop, like.short_side) == ((128, 224), 180)
    (tmp_path / "config.yaml").write_text("data: {name: scenes, crop: [48, 80]}")
    assert page._crops_like(str(tmp_path), model, TRAIN, run.AdaptSettings()).crop == (48, 80)


def test_the_command_says_what_came_of_it(tmp_path, capsys, monkeypatch, root):
    from gmmseg import cli

    model = gmmseg.build("tiny_unet", preset="softmax", class_names=("sky", "grass"))
    model.save_pretrained(tmp_path / "softmax")
    words = ["adapt", str(tmp_path / "softmax"), "--data", f"folder:{root}", "--minutes", "0.4"]
    monkeypatch.setattr(sys, "argv", ["gmmseg", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as done:
        cli.main()
    told = capsys.readouterr()
    assert done.value.code in (0, None), told.err
    assert "mIoU on 2 validation images" in told.out
    assert f"gmmseg predict IMAGE --model {tmp_path / 'out'}" in told.out
    assert json.loads((Path(tmp_path) / "out/calibration.json").read_text())["score"] == FUSED
    monkeypatch.setattr(sys, "argv", ["gmmseg", *words, "--out", str(tmp_path / "two"), "--train", "all"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "gmmseg: --train all: choose decoder or head\n"
