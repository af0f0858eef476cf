"""Every setting has a bound, and an object made in Python is held to it like a configuration file."""

from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from gmmseg.bounds import broken_rule, shown
from gmmseg.config import (
    Config,
    ConfigError,
    DataSettings,
    InferenceSettings,
    ModelSettings,
    dump_config,
    parse_config,
)
from gmmseg.mixture import EMSettings
from gmmseg.models.heads import HeadSettings
from gmmseg.training.train_settings import TrainSettings

SECTIONS = {
    ("em",): EMSettings,
    ("model", "head"): HeadSettings,
    ("train",): TrainSettings,
    ("data",): DataSettings,
    ("inference",): InferenceSettings,
    ("model",): ModelSettings,
    (): Config,
}
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"), -1e308, -(2**63), "many", True)


def parts(hint):
    """The annotations without None and tuples: what single values are held to."""
    origin = get_origin(hint)
    if origin is Annotated or origin is Literal or origin is None:
        return [] if hint in (NoneType, ...) else [hint]
    return [part for each in get_args(hint) for part in parts(each)]


def bare(hint):
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


FIELDS = [
    pytest.param(section, kind, field, part, id=f"{kind.__name__}.{field.name}-{number}")
    for section, kind in SECTIONS.items()
    for field in fields(kind)
    for number, part in enumerate(parts(get_type_hints(kind, include_extras=True)[field.name]))
    if not is_dataclass(part)
]


def with_value(field, kind, value):
    """``value`` as the field takes it: in a tuple where the field is one."""
    default = getattr(kind(), field.name)
    if isinstance(default, tuple):
        return (value, *default[1:])
    return value


def refused(kind, section, field, value):
    """Python and a configuration file both refuse the value, naming the field."""
    given = with_value(field, kind, value)
    with pytest.raises(ValueError, match=rf"^{field.name} must") as directly:
        kind(**{field.name: given})
    assert "\n" not in str(directly.value)
    tree = {field.name: list(given) if isinstance(given, tuple) else given}
    for name in reversed(section):
        tree = {name: tree}
    with pytest.raises(ConfigError, match=field.name) as from_file:
        parse_config(tree, "wrong.yaml")
    assert str(from_file.value).startswith("wrong.yaml: ")
    assert "\n" not in str(from_file.value)


@pytest.mark.parametrize(("section", "kind", "field", "part"), FIELDS)
def test_every_setting_refuses_what_lies_beyond_its_bounds(section, kind, field, part):
    if get_origin(part) is Literal:
        refused(kind, section, field, "nonsense")
    elif bare(part) is bool:
        with pytest.raises(ValueError, match=rf"^{field.name} must be true or false"):
            kind(**{field.name: 7})
    elif bare(part) is str:
        refused(kind, section, field, "")
        refused(kind, section, field, 7)
    else:
        assert bare(part) in (int, float), f"{kind.__name__}.{field.name} has a type the bounds do not know"
        for value in NO_NUMBERS:
            given = with_value(field, kind, value)
            with pytest.raises(ValueError, match=rf"^{field.name} must"):
                kind(**{field.name: given})
        for value in NO_NUMBERS[:5]:
            refused(kind, section, field, value)


@pytest.mark.parametrize(("section", "kind", "field", "part"), FIELDS)
def test_every_number_has_a_lower_bound_and_every_whole_number_an_upper_one(section, kind, field, part):
    if bare(part) is float:
        assert broken_rule(-1e-9, part), f"{kind.__name__}.{field.name} may be negative"
    elif bare(part) is int:
        assert broken_rule(-1, part)
        assert broken_rule(2**32, part)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainSettings(warmup_steps=-5), "warmup_steps must be at least 0, got -5"),
        (lambda: TrainSettings(clip_norm=0.0), "clip_norm must be more than 0, got 0.0"),
        (lambda: TrainSettings(power=-3.0), "power must be at least 0, got -3.0"),
        (lambda: TrainSettings(ema=1.0), "ema must be less than 1, got 1.0"),
        (lambda: TrainSettings(milestones=(0.5, 1.5)), "milestones must be at most 1"),
        (lambda: TrainSettings(milestones=0.5), "milestones must be a list"),
        (lambda: DataSettings(crop=(96,)), "crop must be a list of 2"),
        (lambda: DataSettings(scale=(2.0, 0.5)), "scale must be ascending"),
        (lambda: Config(inference=InferenceSettings(stride=5)), "a window stride needs a window"),
        (lambda: HeadSettings(dim=1), "dim must be at least 2 with whitened coordinates, got 1"),
        (lambda: ModelSettings(head="paper"), "head must be HeadSettings"),
    ],
)
def test_rules_are_named_with_the_value(make, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        make()


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "..", ".hidden", "a\nb", "\x1b[31m", "x" * 101, ""])
def test_the_name_of_a_run_is_one_folder(name):
    with pytest.raises(ValueError, match="name must name one folder"):
        Config(name=name)
    with pytest.raises(ConfigError, match="name must name one folder"):
        parse_config({"name": name})


@pytest.mark.parametrize("name", ["run", "été 2", "camvid-v1.2", "x" * 100])
def test_ordinary_names_are_names(name):
    assert parse_config({"name": name}).name == name


def test_numbers_of_numpy_and_lists_become_those_of_a_file():
    import numpy as np

    train = TrainSettings(steps=np.int64(3), learning_rate=np.float64(0.5), milestones=[np.float32(0.5)])
    config = Config(train=train, data=DataSettings(crop=[32, 48]))
    assert parse_config(yaml.safe_load(dump_config(config))) == config
    assert config.data.crop == (32, 48)
    assert [type(each) for each in (train.steps, train.learning_rate, *train.milestones)] == [
        int,
        float,
        float,
    ]


def test_integers_beyond_any_float_are_refused():
    with pytest.raises(ValueError, match=r"^learning_rate must be finite"):
        TrainSettings(learning_rate=10**400)
    with pytest.raises(ConfigError, match="learning_rate"):
        parse_config({"train": {"learning_rate": 10**400}})


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"train": {"steps": True}}, "x: train.steps: must be a whole number, got True"),
        ({"train": {"ema": False}}, "x: train.ema: must be a number, got False"),
        ({"data": {"crop": [True, 5]}}, r"x: data.crop: must be a whole number, got \[True, 5\]"),
        ({"name": "a/b"}, "x: name must name one folder"),
    ],
)
def test_a_file_is_refused_with_its_key(tree, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_config(tree, "x")


def test_a_value_in_a_message_stays_short():
    nested = []
    for _ in range(40):
        nested = [nested] * 10  # a few bytes of YAML with aliases, 10^40 when written out
    assert len(shown(nested)) <= 80
