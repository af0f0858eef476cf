"""Resume as a user has it: what may change, what is refused, nothing written before that is sure."""

import os
import shlex
import signal

import pytest
import torch

import gmmseg
from gmmseg.config import load_config
from gmmseg.data.scenes import Scenes
from gmmseg.run.resuming import check_resumable, describe_run
from gmmseg.training.checkpoint import CheckpointError, list_checkpoints
from gmmseg.training.trainer import Trainer

SETTINGS = (
    "data.crop=[24,32]", "data.workers=0", "model.name=tiny_unet", "model.weights=null", "train.steps=6",
    "train.batch_size=2", "train.backbone_multiplier=1", "train.warmup_steps=2", "train.validate_every=3",
    "train.save_every=2", "train.log_every=1",
)  # fmt: skip


@pytest.fixture
def said_by(gmmseg_command):
    """`gmmseg WORDS` in this process: the exit code and everything it says."""

    def command(*words):
        code, out, err = gmmseg_command(*words)
        return code, out + err

    return command


@pytest.fixture
def train(said_by, root):
    """`gmmseg train` on the small folder, with these words on top."""
    return lambda *words: said_by("train", "folder", f"data.root={root}", *SETTINGS, "--cpu", *words)


@pytest.fixture(scope="module")
def stop_at():
    """Trainers that ask themselves to stop after a step, as a terminal or a scheduler would."""

    def after(step, number):
        report = Trainer._report

        def report_and_signal(trainer, *arguments):
            report(trainer, *arguments)
            if trainer.step == step:
                os.kill(os.getpid(), number)

        return report_and_signal

    return after


def content(folder):
    """Every file of a folder with its bytes and its time of change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def weights(folder):
    return [(folder / part / "model.safetensors").read_bytes() for part in ("best", "final")]


def go_on(said):
    """The command that a message ends with."""
    return shlex.split(said.strip().rpartition(": gmmseg ")[2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on_and_the_command_arrives_at_the_same_weights(
    train, said_by, stop_at, tmp_path, monkeypatch, number
):
    assert train("--out", tmp_path / "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", stop_at(3, number))
        code, said = train("--out", tmp_path / "a run")
    assert code == 130
    assert "stopped at step 3, the state is in" in said
    assert "step_00000003.pt" in said
    code, said = said_by(*go_on(said))
    assert code == 0, said
    assert weights(tmp_path / "a run") == weights(tmp_path / "whole")
    logs = [(tmp_path / name / "log.jsonl").read_text().count("\n") for name in ("a run", "whole")]
    assert logs[0] == logs[1] == 8  # six steps, two validations


def test_a_finished_run_says_so_and_is_left_as_it_is(train, tmp_path):
    train("--out", tmp_path)
    before = content(tmp_path)
    code, said = train("--out", tmp_path, "--resume", "train.log_every=3")
    assert code == 0
    assert "finished, at step 6" in said
    assert content(tmp_path) == before
    # More steps make it unfinished; that they change the outcome is said.
    code, said = train("--out", tmp_path, "--resume", "train.steps=7")
    assert code == 0
    assert "warning: resumed with other settings: train.steps 6 -> 7; the weights will be those" in said
    assert (tmp_path / "checkpoints" / "step_00000007.pt").is_file()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model.head=softmax", "model.head.kind gmm -> softmax"),
        ("em.memory=queue", "em.memory statistics -> queue"),
        ("train.ema=0.9", "train.ema None -> 0.9"),
        ("train.optimizer=sgd", "train.optimizer adamw -> sgd"),
        ("data.held_out=[sky]", "data.held_out [] -> ['sky'], classes ['sky', 'grass'] -> ['grass']"),
    ],
)
def test_what_cannot_change_is_refused_in_a_few_words_and_nothing_is_written(
    train, stop_at, tmp_path, monkeypatch, change, named
):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", stop_at(2, signal.SIGINT))
        train("--out", tmp_path)
    before = content(tmp_path)
    code, said = train("--out", tmp_path, "--resume", change)
    assert code == 1
    assert f"settings that cannot change on the way: {named}" in said
    assert "Traceback" not in said
    assert len(said) < 600
    assert content(tmp_path) == before


def test_a_broken_newest_checkpoint_is_named_and_the_command_offered_works(train, said_by, tmp_path):
    train("--out", tmp_path / "whole")
    train("--out", tmp_path / "run")
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[0]
    flipped = bytearray(newest.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    newest.write_bytes(flipped)
    before = content(tmp_path / "run")
    code, said = train("--out", tmp_path / "run", "--resume")
    assert code == 1
    assert f"{newest}: damaged" in said
    assert content(tmp_path / "run") == before
    code, said = said_by(*go_on(said))
    assert code == 0, said
    assert f"set aside as {newest}.unused" in said
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_a_folder_where_nothing_was_saved_yet_is_no_dead_end(train, tmp_path, words):
    """As a kill during the first checkpoint's write leaves it, or a divergence before it."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".writing_abc").write_bytes(b"half")
    (tmp_path / "checkpoints" / "diverged_00000001.pt").write_bytes(b"a state to look at")
    (tmp_path / "config.yaml").write_text("name: killed")
    (tmp_path / "log.jsonl").write_text('{"step": 1, "kind": "train"}\n{"step": 2, "ki')
    code, said = train("--out", tmp_path, *words)
    assert code == 0, said
    assert ("nothing was saved here yet; the run starts from the beginning" in said) == bool(words)
    assert len(weights(tmp_path)) == 2
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 8
    assert not list((tmp_path / "checkpoints").glob(".writing_*"))


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_weights_without_checkpoints_are_not_overwritten(train, tmp_path, words):
    gmmseg.build("tiny_unet", num_classes=2).save_pretrained(tmp_path / "final")
    before = content(tmp_path)
    code, said = train("--out", tmp_path, *words)
    assert code == 1
    assert "holds trained weights (final)" in said
    assert content(tmp_path) == before


def test_a_checkpoint_of_another_run_does_not_go_on_over_this_one(train, tmp_path):
    for name in ("one", "other"):
        train("--out", tmp_path / name, "train.steps=2")
    before = content(tmp_path / "one")
    newest = list_checkpoints(tmp_path / "other" / "checkpoints")[0]
    code, said = train("--out", tmp_path / "one", "--resume-from", newest)
    assert code == 1
    assert "holds a run already" in said
    assert content(tmp_path / "one") == before
    code, said = train("--out", tmp_path / "new", "--resume-from", newest)
    assert code == 0, said
    assert (tmp_path / "new" / "checkpoints" / "step_00000006.pt").is_file()


def test_a_checkpoint_that_is_not_there_starts_no_run(train, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent", "absent.pt"):
        for out in (tmp_path / "out", tmp_path / name):
            code, said = train("--out", out, "--resume-from", tmp_path / name)
            assert code == 1, name
            assert f"{tmp_path / name}: there is no such checkpoint; name a file" in said
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_a_run_that_goes_on_in_a_new_folder_has_best_weights_of_its_own(train, tmp_path, monkeypatch):
    scores = iter([{"score": 0.9}, {"score": 0.1}])
    monkeypatch.setattr("gmmseg.run.building.validate", lambda model, dataset: next(scores))
    train("--out", tmp_path / "one", "train.steps=2")
    code, said = train("--out", tmp_path / "new", "--resume-from", tmp_path / "one", "train.validate_every=9")
    assert code == 0, said
    assert "has no best/: the best weights are chosen from this step on" in said
    assert weights(tmp_path / "new")[0] == weights(tmp_path / "new")[1]


def test_a_folder_in_use_is_refused(train, tmp_path):
    from gmmseg.training.run_folder import locked

    with locked(tmp_path):
        before = content(tmp_path)
        for words in ((), ("--resume",)):
            code, said = train("--out", tmp_path, *words)
            assert code == 1
            assert "is writing here" in said
        assert content(tmp_path) == before


def test_checkpoints_without_settings_resume_with_a_warning(train, stop_at, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", stop_at(2, signal.SIGINT))
        train("--out", tmp_path)
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    state = torch.load(path)
    del state["about"]
    torch.save(state, path)
    code, said = train("--out", tmp_path, "--resume", "model.head=softmax")
    assert code == 1
    assert "does not fit these settings" in said
    assert len(said) < 800
    code, said = train("--out", tmp_path, "--resume")
    assert code == 0
    assert "without its settings" in said


def described(*changes, processes=1):
    return describe_run(load_config("scenes", list(changes)), Scenes("train", length=3), processes)


def said_about(before, now):
    heard = []
    check_resumable("some.pt", before, now, heard.append)
    return heard


def test_what_has_no_influence_on_the_weights_is_told_apart_from_what_has():
    before = described()
    assert said_about(before, described()) == []
    free = ["data.workers=3", "train.save_every=7", "inference.window=64", "name=x"]
    for change in [*free, "model.weights=there.pth"]:
        (heard,) = said_about(before, described(change))
        assert "to the same weights" in heard, change
    (heard,) = said_about(before, described("data.root=elsewhere"))
    assert heard.startswith("warning")
    assert "data.root None -> elsewhere; the weights stay the same only if the images there are" in heard
    for change in ("train.steps=9", "train.learning_rate=0.5", "em.decay=0.5", "data.crop=[8,8]"):
        (heard,) = said_about(before, described(change))
        assert heard.startswith("warning"), change
        assert "the weights will be those of neither run" in heard


def test_switches_may_change_their_value_but_not_come_or_go():
    with_average = described("train.ema=0.9")
    assert "neither run" in said_about(with_average, described("train.ema=0.99"))[0]
    for now in (described("train.ema=null"), described("train.ema=0.9", processes=2)):
        with pytest.raises(CheckpointError, match=r"cannot change on the way: (train\.ema|processes)"):
            check_resumable("some.pt", with_average, now, str)


def test_settings_that_only_one_version_knows_are_not_compared():
    before = described()
    now = {**before, "train.invented": 3}
    del now["train.momentum"]
    assert said_about(before, now) == []


def test_a_long_list_of_differences_is_cut():
    changes = [f"model.head.{key}" for key in ("dim=8", "components=2", "winner=true", "temperature=2")]
    changes += ["train.seed=3", "train.batch_size=2", "train.optimizer=sgd", "data.balanced=true"]
    with pytest.raises(CheckpointError, match="and 2 more; resume with"):
        check_resumable("some.pt", described(), described(*changes), str)
