import json
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import Subset

import gmmseg
from gmmseg.data import Scenes, ScenesAnomaly, open_dataset
from gmmseg.evaluation import AnomalyCurve, EvaluationError, ranking
from gmmseg.evaluation.evaluator import evaluate_anomaly, evaluate_closed_set, fit_scores
from gmmseg.evaluation.postprocessing import DilatedSmoothing
from gmmseg.evaluation.scores import (
    MSP,
    Mahalanobis,
    MixtureLikelihood,
    NearestNeighbours,
    NegativeLogLikelihood,
    StandardisedMaxLogit,
)
from gmmseg.inference import Predictor, windows
from gmmseg.inference.image_losses import large_components
from gmmseg.inference.predictor import at_short_side
from gmmseg.inference.windows import forward
from gmmseg.labels import IGNORE
from gmmseg.models import Calibration
from gmmseg.models.calibration_file import PROMISED, Threshold
from gmmseg.models.false_alarms import FalseAlarms
from gmmseg.models.saving import digest

SCENES = Scenes("test", size=(32, 48), length=4)
STRANGE = ScenesAnomaly("test", size=(32, 48), length=5)


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(gmmseg.build("tiny_unet", num_classes=10))


def test_closed_set_equals_predicting_every_image_by_hand(predictor):
    entry = evaluate_closed_set(predictor, SCENES)
    counts = torch.zeros(10, 10, dtype=torch.int64)
    for index in range(4):
        sample = SCENES[index]
        predicted = predictor.predict(sample.image).labels
        counts += torch.bincount(
            sample.labels.long().flatten() * 10 + predicted.long().flatten(), minlength=100
        ).view(10, 10)
    iou = counts.diag() / (counts.sum(0) + counts.sum(1) - counts.diag())
    assert entry["metrics"]["miou"] == pytest.approx(iou.nanmean().item())
    assert entry["pixels"] == 4 * 32 * 48


@pytest.mark.parametrize("steps", [(), (DilatedSmoothing(),)], ids=["plain", "smoothed"])
def test_what_the_threshold_flags_is_reported_with_its_promise(predictor, steps):
    """The model's own map, whatever scores and steps are judged beside it."""
    weights, asked = digest(predictor.segmenter), FalseAlarms(0.1)
    scores = [predictor.predict(STRANGE[index].image).anomaly for index in range(5)]
    value = float(torch.stack(scores).quantile(0.9))
    found = Threshold(value, false_alarms=asked, images=9)
    predictor.segmenter.calibration = Calibration(weights, {PROMISED: found}, 1.0, None, None, None)
    try:
        strange = evaluate_anomaly(predictor, STRANGE, [MSP()], steps=steps)["at_threshold"]
        known = evaluate_closed_set(predictor, SCENES)["at_threshold"]
        other = evaluate_closed_set(Predictor(predictor.segmenter, score="entropy"), SCENES)
        shown = [predictor.predict(SCENES[index].image).anomaly for index in range(4)]
    finally:
        predictor.segmenter.calibration = None
    masks = [STRANGE[index].labels for index in range(5)]
    hits = sum(int(((map_ > value) & (mask == 1)).sum()) for map_, mask in zip(scores, masks))
    shares = [float((map_ > value)[mask == 0].float().mean()) for map_, mask in zip(scores, masks)]
    assert strange["recall"] == pytest.approx(hits / sum(int((mask == 1).sum()) for mask in masks))
    assert strange["flagged_known"] == pytest.approx(sum(shares) / 5, rel=1e-5)
    assert strange["promise"].startswith("flags on average at most 10 % of the known pixels")
    assert known["flagged_known"] == pytest.approx(float((torch.stack(shown) > value).float().mean()))
    assert known["images_with_alarm"] == sum(bool((each > value).any()) for each in shown) / 4
    assert "recall" not in known
    assert "at_threshold" not in other, "a threshold is one of its own score"
    assert "at_threshold" not in evaluate_closed_set(predictor, SCENES)


def test_regions_of_an_image_are_looked_for_once(predictor, monkeypatch):
    """Both the rates of the set and the ranking of its images are of the same flagged pixels."""
    areas = []

    def counted(region, min_area):
        areas.append(min_area)
        return large_components(region, min_area)

    monkeypatch.setattr("gmmseg.evaluation.alarms.large_components", counted)
    scores = [predictor.predict(STRANGE[index].image).anomaly for index in range(5)]
    value = float(torch.stack(scores).quantile(0.9))
    asked = FalseAlarms(0.1, per="image", min_area=6)
    found = {PROMISED: Threshold(value, false_alarms=asked, images=9)}
    weights = digest(predictor.segmenter)
    monkeypatch.setattr(
        predictor.segmenter, "calibration", Calibration(weights, found, 1.0, None, None, None)
    )
    entry = evaluate_anomaly(predictor, STRANGE, [MSP()])
    assert areas == [6] * 5
    kept = [
        large_components((map_ > value).numpy() & (STRANGE[index].labels != IGNORE).numpy(), 6)
        for index, map_ in enumerate(scores)
    ]
    hits = [float((each & (STRANGE[i].labels == 1).numpy()).sum()) for i, each in enumerate(kept)]
    unknown = [float((STRANGE[index].labels == 1).sum()) for index in range(5)]
    assert entry["at_threshold"]["recall"] == pytest.approx(sum(hits) / sum(unknown))
    for image in entry["images_ranked"]["worst"]:
        place = image["index"]
        assert image["missed"] == pytest.approx(1 - hits[place] / unknown[place], nan_ok=True)


def test_a_temperature_changes_the_calibration_error_alone_and_the_old_one_is_reported(predictor):
    plain = evaluate_closed_set(predictor, SCENES)["metrics"]
    weights = digest(predictor.segmenter)
    predictor.segmenter.calibration = Calibration(weights, {}, 1.7, None, None, None)
    try:
        tempered = evaluate_closed_set(predictor, SCENES)["metrics"]
    finally:
        predictor.segmenter.calibration = None
    assert tempered["ece_as_trained"] == pytest.approx(plain["ece"], abs=1e-6)
    assert tempered["ece"] != pytest.approx(plain["ece"], abs=1e-3)
    assert tempered["miou"] == plain["miou"]


def test_anomaly_scores_are_those_of_the_prediction(predictor):
    entry = evaluate_anomaly(predictor, STRANGE, [NegativeLogLikelihood()], intervals=False)
    curve = AnomalyCurve()
    for index in range(5):
        curve.update(predictor.predict(STRANGE[index].image).anomaly, STRANGE[index].labels)
    assert entry["scores"]["nll"]["ap"] == pytest.approx(curve.compute()["ap"], abs=1e-6)


def test_post_processing_is_reported_with_and_without(predictor):
    entry = evaluate_anomaly(predictor, STRANGE, [MSP()], steps=[DilatedSmoothing()], components="obstacle")
    assert set(entry["scores"]) == {"msp", "msp+DilatedSmoothing"}
    assert entry["scores"]["msp"]["auroc"] != entry["scores"]["msp+DilatedSmoothing"]["auroc"]
    assert 0 <= entry["scores"]["msp"]["components"]["f1_star"] <= 1


def test_scores_of_points_and_components_are_fitted_and_upsampled(predictor):
    scores = [Mahalanobis(), MixtureLikelihood()]
    fit_scores(scores, predictor, SCENES)
    entry = evaluate_anomaly(predictor, STRANGE, scores, intervals=False)
    assert entry["images"] == 5
    assert all(0 <= each["auroc"] <= 1 for each in entry["scores"].values())


def test_all_fitted_scores_need_one_pass_over_the_training_set(predictor):
    scores = [StandardisedMaxLogit(), Mahalanobis(), NearestNeighbours()]
    seen = []
    fit_scores(scores, predictor, SCENES, progress=lambda done, total, name: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    batches = [
        (forward(predictor.segmenter, SCENES[i].image[None] / 255), SCENES[i].labels[None].long())
        for i in range(4)
    ]
    image = torch.rand(1, 3, 32, 48)
    for score in scores:
        alone = type(score)()
        alone.fit(batches)
        output = forward(predictor.segmenter, image)
        assert torch.equal(score(output), alone(output))


def test_images_are_judged_at_label_size_whatever_size_they_are_seen_at(predictor):
    assert at_short_side(torch.rand(1, 3, 32, 48), 16).shape == (1, 3, 16, 24)
    smaller = Predictor(predictor.segmenter, short_side=64)
    assert evaluate_closed_set(smaller, SCENES)["pixels"] == 4 * 32 * 48


def test_refusals(predictor):
    with pytest.raises(ValueError, match="10 classes, the model 3"):
        evaluate_closed_set(Predictor(gmmseg.build("tiny_unet", num_classes=3)), SCENES)
    with pytest.raises(ValueError, match="scenes, split test: there are no images"):
        evaluate_closed_set(predictor, Scenes("test", size=(32, 48), length=0))


def test_road_anomaly_runs_end_to_end(predictor, shared):
    """Real photographs and masks through loader, network and metric, judged at mask resolution."""
    dataset = open_dataset("road_anomaly", shared / "data" / "road_anomaly")
    some = Subset(dataset, [0, 1])
    some.name, some.label_space = dataset.name, None
    smaller = Predictor(predictor.segmenter, short_side=180)
    entry = evaluate_anomaly(smaller, some, [NegativeLogLikelihood(), MSP()])
    masks = [dataset[index].labels for index in (0, 1)]
    assert entry["pixels"] + entry["ignored_pixels"] == sum(mask.numel() for mask in masks)
    assert entry["anomalous_pixels"] == sum(int((mask == 1).sum()) for mask in masks)
    assert set(entry["scores"]["nll"]["intervals"]) >= {"auroc", "ap", "fpr95"}


WORKER = """
import json, os, sys
import torch
import torch.distributed as dist
import gmmseg
from gmmseg import run
from gmmseg.data import Scenes, ScenesAnomaly
if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = gmmseg.build("tiny_unet", num_classes=10)
sets = [Scenes("test", size=(32, 48), length=5), ScenesAnomaly("test", size=(32, 48), length=7)]
judging = run.Judging(["nll", "msp", "sml", "mahalanobis", "knn"])
results = [
    # Three images are unevenly split over two processes; of one image, a process has none.
    run.evaluate(model, "m", sets, judging, training_set=Scenes("train", size=(32, 48), length=n))
    for n in (3, 1)
]
if not dist.is_initialized() or dist.get_rank() == 0:
    print(json.dumps([each["sets"] for each in results], default=str))
if dist.is_initialized():
    dist.destroy_process_group()
"""


def test_two_processes_find_what_one_finds(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    pair = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = []
    for launcher in ([], pair):
        command = [sys.executable, *launcher, str(script)]
        # As many threads either way: convolutions round differently with another number of them.
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240, env=env)
        output = done.stdout
        found.append(json.loads(output.splitlines()[-1]))
    alone, together = found
    assert _equal(together, alone)


def _equal(one, two):
    if isinstance(two, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in two)
    if isinstance(two, list):
        return len(one) == len(two) and all(_equal(a, b) for a, b in zip(one, two))
    return one == pytest.approx(two, abs=1e-6, nan_ok=True) if isinstance(two, float) else one == two


def test_anomaly_sets_upsample_scores_alone_and_rank_each_once(predictor, monkeypatch):
    channels, ranked = [], []
    upsample, rank = windows.upsample, ranking.rank

    def counted(maps, size, **how):
        channels.append(maps.shape[1])
        return upsample(maps, size, **how)

    monkeypatch.setattr(windows, "upsample", counted)
    monkeypatch.setattr(ranking, "rank", lambda *pixels: ranked.append(pixels) or rank(*pixels))
    evaluate_anomaly(predictor, STRANGE, [MSP(), NegativeLogLikelihood()])
    assert set(channels) == {2}
    assert len(ranked) == 2


def test_a_ranking_is_made_anew_after_more_pixels():
    curve = AnomalyCurve()
    curve.update(torch.tensor([[0.0, 1.0]]), torch.tensor([[0, 1]]))
    assert curve.threshold_at_best_f1() == 1
    curve.update(torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 1, 1]]))
    assert curve.threshold_at_tpr(0.5) == 2
    other = AnomalyCurve()
    other.update(torch.full((1, 9), 3.0), torch.ones(1, 9))
    curve.merge(other)
    assert curve.threshold_at_tpr(0.5) == 3
    curve.reset()
    with pytest.raises(EvaluationError, match="no pixel"):
        curve.threshold_at_tpr(0.5)


def test_what_goes_wrong_while_counting_names_the_file(predictor):
    class Broken:
        name = "broken"

        def __call__(self, output):
            return torch.full_like(output.logits[:, 0], float("nan"))

    with pytest.raises(EvaluationError, match=f"{STRANGE[0].name}: .*NaN"):
        evaluate_anomaly(predictor, STRANGE, [Broken()])
