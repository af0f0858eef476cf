"""Evaluations of one model gathered in one file: what was found before is never lost."""

import json

import pytest

from gmmseg.evaluation import EvaluationError, build_results, load_results, record_results, write_results


def figures(ap):
    return {"auroc": 0.9, "ap": ap, "fpr95": 0.3}


def anomalies(root="/a", images=3, window=None, **scores):
    return {
        "task": "anomaly",
        "scores": {name: figures(ap) for name, ap in scores.items()},
        "anomalous_pixels": images,
        "images": images,
        "pixels": 10 * images,
        "ignored_pixels": 0,
        "asked": {"root": root, "window": window},
    }


def labelled(miou, root="/a"):
    counts = {"images": 3, "pixels": 30, "ignored_pixels": 0}
    metrics = {"miou": miou, "pixel_accuracy": 0.9, "mean_accuracy": 0.8, "ece": 0.1}
    return {"task": "closed_set", "metrics": metrics, **counts, "asked": {"root": root}}


def results(weights="w", settings=None, name="net", **sets):
    return build_results(name, sets, weights=weights, settings=settings)


def test_other_sets_stay_and_a_set_judged_again_is_replaced(tmp_path):
    path = tmp_path / "results.json"
    record_results(results(a=labelled(0.5), b=anomalies(nll=0.2), settings={"try": 1}), path)
    record_results(results(a=labelled(0.6), settings={"try": 2}), path)
    found = load_results(path)
    assert found["sets"]["a"]["metrics"]["miou"] == 0.6
    assert found["sets"]["b"]["scores"]["nll"]["ap"] == 0.2
    assert found["settings"] == {"try": 2}
    assert found["sets"]["b"]["settings"] == {"try": 1}, "an entry keeps the settings it was made with"
    assert "settings" not in found["sets"]["a"]


def test_other_scores_of_the_same_set_are_added(tmp_path):
    path = tmp_path / "results.json"
    first = anomalies(nll=0.2, msp=0.1)
    first["scores"]["nll"]["components"] = {"f1_star": 0.4}
    record_results(results(a=first), path)
    record_results(results(a=anomalies(nll=0.3, energy=0.5)), path)
    scores = load_results(path)["sets"]["a"]["scores"]
    assert scores == {
        "nll": {**figures(0.3), "components": {"f1_star": 0.4}},
        "msp": figures(0.1),
        "energy": figures(0.5),
    }


def test_namesakes_from_elsewhere_or_seen_otherwise_get_a_key_of_their_own(tmp_path):
    path = tmp_path / "results.json"
    entries = [
        anomalies(nll=0.1),
        anomalies("/b", nll=0.2),
        anomalies(window=64, nll=0.3),
        anomalies(images=4, nll=0.4),
    ]
    for entry in [*entries, *entries]:  # asked a second time, each answer finds its place
        record_results(results(**{"a/val": entry}), path)
    found = {key: entry["scores"]["nll"]["ap"] for key, entry in load_results(path)["sets"].items()}
    assert found == {"a/val": 0.1, "a/val (root=/b)": 0.2, "a/val (window=64)": 0.3, "a/val (4)": 0.4}


def test_results_of_another_model_are_refused_and_stay(tmp_path):
    path = tmp_path / "results.json"
    record_results(results(a=labelled(0.5)), path)
    before = path.read_bytes()
    for other, what in (
        (results(weights="x"), "other weights"),
        (results("x", name="b"), "'net', not of 'b'"),
    ):
        with pytest.raises(EvaluationError, match=rf"results\.json: holds results of {what}.*--out"):
            record_results(other, path)
    assert path.read_bytes() == before
    record_results(results(name="net/best", b=labelled(0.1)), path)  # the same weights by another name
    assert set(load_results(path)["sets"]) == {"a", "b"}


def test_files_written_before_weights_and_questions_were_recorded_are_taken_up(tmp_path):
    path = tmp_path / "results.json"
    old = results(a=labelled(0.5), b=anomalies(nll=0.2))
    del old["weights"]
    for entry in old["sets"].values():
        del entry["asked"]
    write_results(old, path)
    record_results(results(a=labelled(0.6), b=anomalies(images=5, nll=0.3)), path)
    found = json.loads(path.read_text())["sets"]
    assert found["a"]["metrics"]["miou"] == 0.6, "as many images and pixels: the same set"
    assert found["b"]["scores"]["nll"]["ap"] == 0.2
    assert found["b (root=/a)"]["scores"]["nll"]["ap"] == 0.3
    write_results(old, path)
    with pytest.raises(EvaluationError, match="not of 'other'"):
        record_results(results(name="other"), path)


def test_scores_keep_what_they_were_made_with_and_nothing_of_another_kind_is_lost(tmp_path):
    path = tmp_path / "results.json"
    first = anomalies(knn=0.1, typicality=0.2)
    first["scores"]["knn"] |= {"fitted_on": "a/train", "components": {"preset": "obstacle", "f1_star": 0.4}}
    record_results(results(a=first, settings={"temperature": 1}), path)
    second = anomalies(knn=0.3)
    second["scores"]["knn"] |= {"fitted_on": "a/train", "components": {"preset": "anomaly", "f1_star": 0.5}}
    record_results(results(a=second, settings={"temperature": 7}), path)
    scores = load_results(path)["sets"]["a"]["scores"]
    assert scores["typicality"]["settings"] == {"temperature": 1}, "as it was made, not as the new ones are"
    assert scores["knn"]["components"]["f1_star"] == 0.5
    assert scores["knn"]["components (obstacle)"]["f1_star"] == 0.4
    third = anomalies(knn=0.6)
    third["scores"]["knn"]["fitted_on"] = "b/train"
    record_results(results(a=third), path)
    sets = load_results(path)["sets"]
    assert list(sets) == ["a"], "what scores were fitted on does not split a set"
    assert sets["a"]["scores"]["knn"]["ap"] == 0.6
    assert sets["a"]["scores"]["knn (fitted on a/train)"]["ap"] == 0.3
