"""The experiments: their tables come from files in the repository, their refusals say what is missing."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

from gmmseg.config import DataSettings
from gmmseg.data import Streets, open_dataset

ROOT = Path(__file__).parents[1]


@pytest.fixture
def camvid(monkeypatch):
    """The module experiments/camvid.py."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import camvid

    return camvid


@pytest.fixture
def start_from(monkeypatch):
    """The module experiments/start_from.py."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import start_from

    return start_from


@pytest.mark.parametrize("table", ["sources", "fit", "adapt", "cached"])
def test_the_tables_of_models_that_start_from_others_are_those_of_the_files(start_from, capsys, table):
    start_from.print_table(table)
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") >= 2
    assert f"<!-- {table} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "results.md").read_text()


def test_starting_from_a_model_needs_its_data(start_from, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["start_from.py", "fit"])
    with pytest.raises(SystemExit):
        start_from.main()
    assert "--camvid, are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "table", ["closed", "held_out", "ablations", "choices", "paper", "demo", "demo_from_scratch"]
)
def test_the_documented_tables_are_those_of_the_files(camvid, capsys, table):
    camvid.print_table(table)
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {table} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "results_tables.md").read_text()


@pytest.mark.parametrize("table", ["closed", "held_out"])
def test_the_short_tables_are_those_of_the_files(camvid, capsys, table):
    camvid.print_table(table, short=True)
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {table} short -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "results.md").read_text()


@pytest.mark.parametrize(("name", "shown"), [("rare", "print_table"), ("rare classes", "print_classes")])
def test_the_tables_of_rare_classes_are_those_of_the_files(monkeypatch, capsys, name, shown):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import rare_classes

    getattr(rare_classes, shown)()
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {name} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "results_tables.md").read_text()


@pytest.mark.parametrize("name", ["pairs", "seeds", "end_to_end", "resolution"])
def test_the_tables_of_other_experiments_are_those_of_the_files(monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import_module(name).print_table()
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {name} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "results_tables.md").read_text()


@pytest.mark.parametrize("table", ["promises", "drives"])
def test_the_documented_false_alarms_are_those_of_the_files(monkeypatch, capsys, table):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import promises

    promises.print_table(table)
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {table} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "thresholds.md").read_text()


@pytest.mark.parametrize("table", ["normal", "changed"])
def test_the_documented_streams_are_those_of_the_file(monkeypatch, capsys, table):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import monitor

    monitor.print_table(table)
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 2
    assert f"<!-- {table} -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "monitor.md").read_text()


def test_every_strength_of_a_change_is_measured(monkeypatch):
    """Each kind has images of its own: a loop variable read too late had made all fog the strongest one."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import monitor

    monkeypatch.setattr(monitor, "SCENES", 2)
    first = {kind: next(images) for kind, images in monitor.images_by_kind().items()}
    scene = Streets("test", length=2, seed=5)[0].image
    for share in (0.2, 0.4):
        assert torch.equal(first[f"fog {share}"], monitor.foggy(scene, share))
    for factor in (0.6, 1.5):
        assert torch.equal(first[f"brightness {factor}"], monitor.brighter(scene, factor))
    assert len({image.float().mean().item() for image in first.values()}) == len(first)


def test_the_documented_table_of_new_classes_is_that_of_the_files(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import new_classes

    new_classes.print_table()
    printed = capsys.readouterr().out.strip()
    assert printed.count("\n") > 5
    assert f"<!-- new_classes -->\n{printed}\n<!-- end -->" in (ROOT / "docs" / "new_classes.md").read_text()


def test_training_without_data_says_what_is_needed(camvid, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["camvid.py", "ablations"])
    with pytest.raises(SystemExit):
        camvid.main()
    assert "--camvid and --weights are needed" in capsys.readouterr().err


def test_drives_are_told_apart_by_name(camvid, tmp_path):
    names = ["0001TP_1", "0006R0_1", "0016E5_1", "0016E5_2"]
    for kind, suffix in (("images", ".jpg"), ("labels", ".png")):
        (tmp_path / "camvid" / kind / "train").mkdir(parents=True)
        for name in names:
            (tmp_path / "camvid" / kind / "train" / f"{name}{suffix}").write_text(name)
    split = camvid.split_by_drive(tmp_path / "camvid", tmp_path / "links")
    for kind in ("images", "labels"):
        found = {each: sorted(p.stem for p in (split / kind / each).iterdir()) for each in ("train", "val")}
        assert found == {"train": names[1:], "val": names[:1]}
    assert (split / "labels" / "val" / "0001TP_1.png").read_text() == "0001TP_1"


@pytest.mark.parametrize("table", ["ablations", "held_out"])
def test_what_runs_are_judged_on_holds_known_and_hidden_classes(camvid, table, tmp_path):
    """The sets of a table without a training: known classes without the hidden ones, and the hidden ones."""
    space = open_dataset("camvid", _tiny_camvid(tmp_path), "test").label_space
    experiment = object.__new__(camvid.Experiment)
    experiment.table, experiment.camvid = table, tmp_path
    names = ("car", "pedestrian", "bicyclist")
    known, hidden = experiment.sets(DataSettings(name="camvid", root=str(tmp_path), held_out=names))
    assert set(known.label_space.names) == set(space.names) - set(names)
    assert hidden.label_space is None
    assert {known.split, hidden.split} == {"val" if table == "ablations" else "test"}


def _tiny_camvid(root):
    """A tree in CamVid's layout with one image in each split."""
    for split in ("train", "val", "test"):
        for kind, mode in (("images", "RGB"), ("labels", "L")):
            (root / kind / split).mkdir(parents=True)
            Image.new(mode, (16, 12)).save(root / kind / split / "0001TP_0.png")
    return root
