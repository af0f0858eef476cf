"""Tables of configurations and overrides that `gmmseg train` must refuse before it does anything."""

import pytest
from harness import assert_refused, invoke

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))

FILES = [
    # what the file holds, words of the message
    ("[", "cannot be parsed"),
    ("a: [", "cannot be parsed"),
    ("a: {", "cannot be parsed"),
    ("a: 'x", "cannot be parsed"),
    ("\t- x", "cannot be parsed"),
    ("a: b: c", "cannot be parsed"),
    ("- 1", "mapping of sections, not a list"),
    ("5", "mapping of sections, not a int"),
    ("word", "mapping of sections, not a str"),
    ("true", "mapping of sections, not a bool"),
    ("2024-13-45", "cannot be parsed"),
    ("!!python/object/apply:os.system [ls]", "cannot be parsed"),
    ("!!timestamp x", "cannot be parsed"),
    ("!!float abc", "cannot be parsed"),
    ("a: *unknown", "cannot be parsed"),
    ("{[1]: 2}", "cannot be parsed"),
    ("[" * 3000, "cannot be parsed"),
    ("train: {steps: " + "9" * 5000 + "}", "cannot be parsed"),
    ("1: 2", "the key 1 is no word but a int"),
    ("true: 2", "the key True is no word"),
    ("null: 2", "the key None is no word"),
    ("train: {5: 3}", "the key 5 is no word"),
    ("model: {head: {1.5: 3}}", "the key 1.5 is no word"),
    ("2024-01-01: x", "is no word but a date"),
    ("include: absent.yaml", "include is a list of files"),
    ("include: [absent.yaml]", "includes absent.yaml, which is not there"),
    ("include: [5]", "include is a list of files"),
    ("include: {a: b}", "include is a list of files"),
    ("include: ['.']", "which is not there"),
    ("include: [bad.yaml]", "which includes it in turn"),
    ("trian: {}", "unknown key 'trian'; there are: name, preset, machine, data, model, em, train, inference; did you mean train?"),
    ("train: {stepz: 5}", "did you mean steps?"),
    ("train: {lerning_rate: 5}", "did you mean learning_rate?"),
    ("data: {wurzel: x}", "unknown key 'data.wurzel'"),
    ("em: {x: 1}", "unknown key 'em.x'"),
    ("model: {head: {x: 1}}", "unknown key 'model.head.x'"),
    ("inference: {x: 1}", "unknown key 'inference.x'"),
    ("em: 5", "em is a section of keys, not 5"),
    ("em: [1]", "em is a section of keys"),
    ("em: null", "em is a section of keys, not None"),
    ("model: 7", "model is a section of keys, not 7"),
    ("model: {head: 7}", "model.head is a section of keys, not 7"),
    ("model: {head: null}", "model.head is a section of keys, not None"),
    ("model: {head: [gmm]}", "model.head is a section of keys"),
    ("model: {head: nonsense}", "model.head.preset is 'nonsense': choose paper"),
    ("model: {head: {preset: 5}}", "model.head.preset is 5: choose paper"),
    ("em: {preset: mine}", "choose paper, reference, default"),
    ("preset: mine", "preset is 'mine': choose paper, reference, default, softmax"),
    ("preset: null", "preset is None: choose paper"),
    ("preset: [paper]", "preset is ['paper']: choose paper"),
    ("preset: {paper: 1}", "preset is {'paper': 1}: choose paper"),
    ("preset: paper\ntrain: 5", "train is a section of keys, not 5"),
    ("preset: paper\ndata: null", "data is a section of keys, not None"),
    ("em: {preset: [paper]}", "em.preset is ['paper']"),
    ("em: {preset: {a: 1}}", "em.preset is {'a': 1}"),
    ("train: 5", "train"),
    ("train: [1]", "train"),
    ("data: x", "data"),
    ("inference: 1", "inference"),
    ("name: ''", "name must name one folder"),
    ("name: ../x", "name must name one folder"),
    ("name: /etc", "name must name one folder"),
    ("name: a/b", "name must name one folder"),
    ("name: ..", "name must name one folder"),
    ("name: .x", "name must name one folder"),
    ('name: "a\\nb"', "name must name one folder"),
    ('name: "\\e[31m"', "name must name one folder"),
    ("name: 5", "name: Input should be a valid string"),
    ("name: [a]", "name: Input should be a valid string"),
    (BOMB + "train: {steps: *a8}", "unknown key"),
    ("train: {steps: &a [1, *a]}", "steps"),
]  # fmt: skip

OVERRIDES = [
    ("train.steps=[", "train.steps=[", "cannot be parsed"),
    ("train.steps", "section.key=value"),
    ("=5", "section.key=value"),
    ("", "section.key=value"),
    ("train.=5", "unknown key 'train.'"),
    (".steps=5", "unknown key ''"),
    ("train.steps.x=5", "train.steps"),
    ("train=5", "train"),
    ("preset=mine", "preset is 'mine': choose paper"),
    ("preset=", "preset is None: choose paper"),
    ("preset.paper=1", "preset is {'paper': 1}: choose paper"),
    ("model.head=7", "model.head is a section of keys, not 7"),
    ("model.head=[]", "model.head is a section of keys, not []"),
    ("train.steps=0", "train.steps", "greater than or equal to 1"),
    ("train.steps=-1", "train.steps"),
    ("train.steps=1.5", "train.steps"),
    ("train.steps=many", "train.steps: Input should be a valid integer"),
    ("train.steps=", "train.steps"),
    ("train.steps=null", "train.steps"),
    ("train.steps=.nan", "train.steps"),
    ("train.steps=.inf", "train.steps"),
    ("train.steps=99999999999999999999", "train.steps"),
    ("train.batch_size=0", "train.batch_size"),
    ("train.accumulate=0", "train.accumulate"),
    ("train.seed=-1", "train.seed"),
    ("train.seed=4294967296", "train.seed"),
    ("train.warmup_steps=-5", "train.warmup_steps", "greater than or equal to 0, got -5"),
    ("train.clip_norm=0", "train.clip_norm", "greater than 0"),
    ("train.clip_norm=-1", "train.clip_norm"),
    ("train.clip_norm=.nan", "train.clip_norm", "got nan"),
    ("train.learning_rate=0", "train.learning_rate"),
    ("train.learning_rate=-1e-3", "train.learning_rate"),
    ("train.learning_rate=.inf", "learning_rate must be finite"),
    ("train.weight_decay=-1", "train.weight_decay"),
    ("train.backbone_multiplier=-1", "train.backbone_multiplier"),
    ("train.link_multiplier=-0.1", "train.link_multiplier"),
    ("train.momentum=1", "train.momentum"),
    ("train.power=-3", "train.power"),
    ("train.milestones=[2]", "train.milestones"),
    ("train.milestones=0.5", "train.milestones"),
    ("train.ema=1", "train.ema"),
    ("train.ema=-0.1", "train.ema"),
    ("train.optimizer=adam", "train.optimizer", "choose 'adamw' or 'sgd', got 'adam'"),
    ("train.schedule=cosine", "choose 'poly' or 'step'"),
    ("train.precision=half", "choose 'no', 'bf16' or 'fp16'"),
    ("train.likelihood_weight=-1", "train.likelihood_weight"),
    ("train.component_weight=-1", "train.component_weight"),
    ("train.auxiliary_weight=.nan", "train.auxiliary_weight", "got nan"),
    ("train.softmax_steps=-1", "train.softmax_steps"),
    ("train.log_every=0", "train.log_every"),
    ("train.validate_every=0", "train.validate_every"),
    ("train.save_every=0", "train.save_every"),
    ("train.tensorboard=perhaps", "train.tensorboard"),
    ("em.epsilon=.nan", "em.epsilon", "got nan"),
    ("em.epsilon=0", "em.epsilon"),
    ("em.epsilon=-1", "em.epsilon"),
    ("em.iterations=0", "em.iterations"),
    ("em.loops=0", "em.loops"),
    ("em.memory=ring", "choose 'queue' or 'statistics'"),
    ("em.memory_size=-1", "em.memory_size"),
    ("em.decay=1", "em.decay"),
    ("em.mean_momentum=1", "em.mean_momentum"),
    ("em.variance_momentum=-0.5", "em.variance_momentum"),
    ("em.variance_floor=-1", "em.variance_floor"),
    ("em.variance_offset=.inf", "variance_offset must be finite"),
    ("em.samples_per_class=0", "em.samples_per_class"),
    ("em.samples_per_component=0", "em.samples_per_component"),
    ("em.update_every=0", "em.update_every"),
    ("em.covariance_shrinkage=0", "em.covariance_shrinkage"),
    ("em.covariance_decay=2", "em.covariance_decay"),
    ("model.name=", "model.name"),
    ("model.name=5", "model.name"),
    ("model.head.components=0", "model.head.components"),
    ("model.head.dim=0", "model.head.dim"),
    ("model.head.dim=1", "dim must be at least 2 with whitened coordinates"),
    ("model.head.temperature=0", "model.head.temperature"),
    ("model.head.temperature=.nan", "model.head.temperature", "got nan"),
    ("model.head.kind=svm", "choose 'gmm' or 'softmax'"),
    ("model.head.projection=cosine", "model.head.projection: choose"),
    ("model.head.link=probit", "model.head.link: choose"),
    ("model.head.discriminative=true", "only EM can fit whitened coordinates"),
    ("data.crop=[0,5]", "data.crop"),
    ("data.crop=[5]", "data.crop"),
    ("data.crop=5", "data.crop"),
    ("data.crop=[-5,5]", "data.crop"),
    ("data.crop=[1,2,3]", "data.crop"),
    ("data.scale=[0,1]", "data.scale"),
    ("data.scale=[2,1]", "scale must be ascending"),
    ("data.scale=[.nan,1]", "data.scale", "got nan"),
    ("data.scale=[0.009,1]", "data.scale", "greater than or equal to 0.01"),
    ("data.scale=[1,101]", "data.scale", "less than or equal to 100"),
    ("data.workers=1025", "data.workers", "less than or equal to 1024"),
    ("data.short_side=0", "data.short_side"),
    ("data.short_side=-640", "data.short_side"),
    ("data.workers=-1", "data.workers"),
    ("data.held_out=sky", "data.held_out"),
    ("data.root=5", "data.root"),
    ("inference.short_side=-1", "inference.short_side"),
    ("inference.window=-1", "inference.window"),
    ("inference.stride=5", "a window stride needs a window"),
    ("inference={window: 8, stride: 9}", "window stride 9 must be between 1 and the window size 8"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), FILES, ids=range(len(FILES)))
def test_files_are_refused_by_name(place, text, word):
    (place / "bad.yaml").write_text(text)
    assert_refused(place, ["train", "bad.yaml", "--cpu"], ["bad.yaml", word])


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda each: each[0])
def test_overrides_are_refused_by_key(place, override):
    assert_refused(place, ["train", "scenes", override[0], "--cpu"], override[1:])


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("bad.toml", b"a = [", "cannot be parsed"),
        ("bad.toml", b"train.steps = 0", "train.steps"),
        ("bad.toml", b"\xff\xfe", "cannot be parsed"),
        ("bad.yaml", b"\xff\xfe\x00", "cannot be parsed"),
        ("bad.yaml", b"\x00", "cannot be parsed"),
        ("bad.yaml", b"a: \x1b[31m", "cannot be parsed"),
        ("bad.yaml", b"#" * 2_000_000, "larger than"),
    ],
)
def test_bytes_are_refused_by_name(place, name, content, word):
    (place / name).write_bytes(content)
    assert_refused(place, ["train", name, "--cpu"], [name, word])


@pytest.mark.parametrize(
    "source",
    ["absent", "absent.yaml", "", " ", "scenes.yaml", "../scenes", "sets/ade20k", "x" * 300, "a\nb", "été"],
)
def test_configurations_that_are_not_there(place, source):
    assert_refused(
        place, ["train", source, "--cpu"], ["no such file" if ".yaml" in source else "there are: "]
    )


@pytest.mark.parametrize("kind", ["folder", "loop", "dangling"])
def test_what_is_no_file_is_no_configuration(place, kind):
    path = place / "bad.yaml"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("bad.yaml" if kind == "loop" else "nowhere")
    assert_refused(place, ["train", "bad.yaml", "--cpu"], ["bad.yaml"])


def test_an_empty_file_is_all_defaults(place):
    (place / "empty.yaml").write_text("")
    assert invoke("train", "empty.yaml", "--print-config").code == 0
