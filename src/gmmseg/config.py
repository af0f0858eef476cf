"""Configuration as typed data: YAML or TOML in, a `Config` out, anything unknown refused.

Nothing below the composition root (run/) knows that configuration files exist.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gmmseg.bounds import Factor, FolderName, Side, Text, Workers, broken_rule, check_bounds, shown
from gmmseg.mixture.em_settings import PRESETS, EMSettings
from gmmseg.models.heads import HEAD_PRESETS, HeadSettings, head_settings, present_words
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.training.train_settings import TRAIN_PRESETS, TrainSettings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Tree = dict[str, object]
"""A configuration, or a section of one: values and sections by key."""
Machine = Literal["gpu", "cpu"]
"""What settings are made for; a file may hold others for a machine without a GPU, under ``on_cpu``."""
SHIPPED = files("gmmseg") / "configs"
LARGEST = 1_000_000
"""Bytes of a configuration file; a hundred times what all settings take."""


OBSOLETE_EM = ("unit_norm_means",)
"""Keys of ``em`` that configurations written by earlier versions may hold: the head's coordinates say it."""
RENAMED_EM = {"spread_decay": "covariance_decay", "spread_shrinkage": "covariance_shrinkage"}
"""Keys of ``em`` as earlier versions wrote them, and as they are called now."""
LATER_EM: Tree = {"decay_points": None}
"""Keys of ``em`` that configurations written by earlier versions, which spell out all others, do not have,
and what those versions did."""
LATER_TRAIN: Tree = {"cached_crops": 0, "density": False, "exemplars": False, "decoders": 1}
"""The same for ``train``."""
OLD_HEAD = {"kind", "components", "dim", "projection", "link", "temperature", "winner", "discriminative"}
"""Keys of ``model.head`` as versions wrote them whose projection said the coordinates too."""
PROJECTIONS = get_args(get_type_hints(HeadSettings)["projection"])


class ConfigError(ValueError):
    """A configuration that cannot be understood; the message names the file and the key."""


@dataclass(frozen=True)
class DataSettings:
    """What is trained and validated on. ``name`` as in ``gmmseg data list``."""

    name: Text = "scenes"
    root: Text | None = None
    train_split: Text = "train"
    validation_split: Text | None = "val"
    held_out: tuple[Text, ...] = ()
    """Classes hidden from training (their pixels are ignored), for an open-world test to look for."""
    crop: tuple[Side, Side] = (96, 160)
    """Height and width of training crops."""
    scale: tuple[Factor, Factor] = (0.5, 2.0)
    short_side: Side | None = None
    """Images are first resized to this shorter side."""
    balanced: bool = False
    """Draw a class first and then an image that holds it, instead of images evenly."""
    workers: Workers = 2
    keep: bool = False
    """Keep samples in memory once read: for small sets and few workers."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale must be ascending, got {list(self.scale)}")


DATA_PRESETS = {word: {"balanced": word == "reference"} for word in HEAD_PRESETS}
"""What a preset says about the sampling of images."""


@dataclass(frozen=True)
class ModelSettings:
    """``name`` as in ``gmmseg zoo``; ``weights`` of the backbone: none, "pretrained" (hub), "packaged"
    (of the extra ``pretrained``) or a file."""

    name: Text = "tiny_unet"
    weights: Text | None = None
    head: HeadSettings = HEAD_PRESETS["default"]

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Config:
    """Everything a training run needs to know."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: FolderName = "run"
    preset: Literal["default", "paper", "reference", "softmax"] = field(default="default", compare=False)
    """The word that gave head, EM, loss weights and sampling their values, before single fields were set.
    Two configurations with the same fields are equal, whichever word they came from."""
    machine: Machine = field(default="gpu", compare=False)
    """cpu where the values under ``on_cpu`` of the file were taken, made for a machine without a GPU."""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    em: EMSettings = PRESETS["default"]
    train: TrainSettings = field(default_factory=TrainSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)

    def __post_init__(self) -> None:
        check_bounds(self)
        self.inference.override()  # refuses what no window can have


def load_config(
    source: str | Path, overrides: list[str] | tuple[str, ...] = (), machine: Machine = "gpu"
) -> Config:
    """The configuration of a file, or of a shipped name, with ``section.key=value`` overrides on top.

    The overrides are one layer: a preset among them replaces what the file says about the fields of a preset,
    and their other keys hold on top of it, in whatever order they are given. On a ``machine`` without a GPU
    the section ``on_cpu`` of the file lies between the two, unless the overrides choose a network themselves
    (``model.name``, or ``model.weights=null``); the override ``machine=gpu`` or ``machine=cpu`` decides.
    """
    given: Tree = {}
    for override in overrides:
        given = _merge(given, _parse_override(override))
    tree = _for_machine(read_tree(find_config(source)), given, machine, str(source))
    return parse_config(_layered(tree, given), str(source))


def _for_machine(tree: Tree, given: Tree, machine: Machine, source: str) -> Tree:
    """The file's content for the machine that ``given`` asks for, or else ``machine``, without ``on_cpu``."""
    on_cpu = _section(tree, "on_cpu", source)
    tree = {key: value for key, value in tree.items() if key != "on_cpu"}
    asked = given.get("machine")
    if not on_cpu:
        held = tree.get("machine", "gpu")
        if asked in get_args(Machine) and asked != held:
            raise ConfigError(
                f"{source}: machine={asked}: it holds settings for one kind of machine ({held}) alone; "
                "others are a section on_cpu, as the shipped configuration folder has one"
            )
        return tree
    for_cpu = {**_layered(tree, on_cpu), "machine": "cpu"}
    parse_config(for_cpu, f"{source}, on_cpu")  # a mistake in it is found on every machine
    model = _mapping(given, "model")
    own_network = "name" in model or ("weights" in model and model["weights"] is None)
    return for_cpu if asked == "cpu" or (asked is None and machine == "cpu" and not own_network) else tree


def parse_config(tree: Tree, source: str = "configuration") -> Config:
    """A Config from nested dictionaries: the values of the preset, then the fields given beside it.

    ``em.preset`` and ``model.head`` (a word) choose another preset for their section alone.
    """
    tree = {key: value for key, value in tree.items() if key != "include"}
    preset = _known_preset(tree.get("preset", "default"), HEAD_PRESETS, "preset", source)
    em, model, train, data = (_section(tree, name, source) for name in ("em", "model", "train", "data"))
    em = {RENAMED_EM.get(key, key): value for key, value in em.items() if key not in OBSOLETE_EM}
    em, train = _complete(em, EMSettings, LATER_EM), _complete(train, TrainSettings, LATER_TRAIN)
    if train.get("precision") is False:  # which is how YAML reads the word no
        train = {**train, "precision": "no"}
    word = isinstance(model.get("head"), str)
    head = {"preset": model["head"]} if word else _section(model, "head", source, "model.")
    heads = {name: asdict(head_settings(name)) for name in (*HEAD_PRESETS, "gmm")}
    ems = {name: asdict(each) for name, each in PRESETS.items()}
    em_preset = preset if preset in PRESETS else "default"  # a softmax head has no EM
    tree |= {
        "data": {**DATA_PRESETS[preset], **data},
        "model": {**model, "head": _with_preset(_present_head(head), heads, preset, "model.head", source)},
        "em": _with_preset(em, ems, em_preset, "em", source),
        "train": {**TRAIN_PRESETS[preset], **train},
    }
    _refuse_unknown(tree, Config, source, "")
    try:
        return TypeAdapter(Config).validate_python(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(map(_problem, error.errors()))}") from None


def _problem(error: "ErrorDetails") -> str:
    """One of pydantic's complaints: the key, the rule it breaks, and the value where the rule has none."""
    key, message = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if error["type"] == "literal_error":
        message = f"choose {error['ctx']['expected']}"
    where = f"{key}: " if key else ""  # a rule of the whole configuration names its key itself
    return f"{where}{message}" + ("" if error["type"] == "value_error" else f", got {shown(error['input'])}")


def dump_config(config: Config) -> str:
    """The whole configuration as YAML, every default spelt out; `load_config` reads it back."""
    return yaml.safe_dump(config_tree(config), sort_keys=False)


def config_tree(config: Config) -> Tree:
    """The whole configuration as nested dictionaries of plain values; `parse_config` reads it back."""
    return {key: _plain(value) for key, value in asdict(config).items()}


def find_config(source: str | Path) -> Path:
    """The path of a file, or of a configuration shipped under that name."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml", ".toml"):
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
        return path
    shipped = Path(str(SHIPPED)) / f"{source}.yaml"
    if os.path.isfile(path / "config.yaml"):  # False, where Path's own raises, for names that are too long
        raise ConfigError(
            f"{path} is a run folder; to go on with the run: "
            f"gmmseg train {path / 'config.yaml'} --out {path} --resume"
        )
    if str(source) not in shipped_configs():
        raise ConfigError(
            f"{source}: neither a .yaml or .toml file nor a shipped configuration; there are: "
            + ", ".join(shipped_configs())
        )
    return shipped


def shipped_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(path.stem for path in Path(str(SHIPPED)).glob("*.yaml"))


def read_tree(path: Path, inside: tuple[Path, ...] = ()) -> Tree:
    """A file's content merged over the files its ``include`` names, which lie relative to it.

    ``inside``: the files that are being read already, each including the next.
    """
    tree = _parsed(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of sections, not a {type(tree).__name__}")
    _refuse_odd_keys(tree, path)
    base: Tree = {}
    for included in _includes(tree, path):
        if included.resolve() in (*inside, path.resolve()):
            raise ConfigError(f"{path}: includes {included}, which includes it in turn; take one of them out")
        base = _layered(base, read_tree(included, (*inside, path.resolve())))
    return _layered(base, _with_present_head(tree))


def _with_present_head(tree: Tree) -> Tree:
    """A file's content, its head as this version says it, before a layer on top can change single fields."""
    model = _mapping(tree, "model")
    head = _mapping(model, "head")
    return {**tree, "model": {**model, "head": _present_head(head)}} if head else tree


def _present_head(head: Tree) -> Tree:
    """The section ``model.head`` in the words of this version.

    Earlier versions wrote every field out, and their projection said the coordinates too. A single field,
    set by hand, says what it says in `HeadSettings`: it leaves the coordinates of the preset as they are.
    """
    from_earlier_version = head.keys() >= OLD_HEAD
    known_word = head.get("projection") in PROJECTIONS
    return present_words(head) if from_earlier_version or not known_word else head


def _parsed(path: Path) -> object:
    """What a YAML or TOML file says."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text) or {}
    except Exception as error:  # the parsers fail in a dozen ways on values and nesting they do not expect
        raise ConfigError(f"{path}: cannot be parsed: {_one_line(error)}") from error


def _includes(tree: Tree, path: Path) -> list[Path]:
    """The files under the key ``include``, which is taken out of ``tree``."""
    named = tree.pop("include", None) or []
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise ConfigError(
            f"{path}: include is a list of files, such as include: [base.yaml], not {shown(named)}"
        )
    for each in named:
        if not (path.parent / each).is_file():
            raise ConfigError(f"{path}: includes {each}, which is not there")
    return [path.parent / each for each in named]


def _refuse_odd_keys(tree: Mapping[object, object], path: Path) -> None:
    """Keys are words at every level; YAML reads 1, true or 2024-01-01 as something else."""
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"{path}: the key {shown(key)} is no word but a {type(key).__name__}; rename it"
            )
        if isinstance(value, dict):
            _refuse_odd_keys(value, path)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _layered(base: Tree, top: Tree) -> Tree:
    """One file, or all overrides, over what lies below.

    A preset on top replaces the fields that presets set: a copied configuration, which spells every field
    out, would otherwise keep them under another word. The same holds for a preset of ``em`` or of
    ``model.head`` alone.
    """
    if "preset" in top:
        return _merge(_without_preset_fields(base), top)
    if "preset" in _mapping(top, "em"):
        base = {**base, "em": {}}
    if "preset" in _mapping(_mapping(top, "model"), "head"):
        base = {**base, "model": {**_mapping(base, "model"), "head": {}}}
    return _merge(base, top)


def _mapping(tree: Tree, key: str) -> Tree:
    """The section ``key``, or an empty one where there is none or its value is a word."""
    found = tree.get(key)
    return found if isinstance(found, dict) else {}


def _without_preset_fields(tree: Tree) -> Tree:
    """``tree`` without the fields that a preset sets."""
    set_by_presets = {"data": DATA_PRESETS["default"], "model": ("head",), "train": TRAIN_PRESETS["default"]}
    kept = {key: value for key, value in tree.items() if key not in ("em", "preset")}
    for name, fields_set in set_by_presets.items():
        section = kept.get(name)
        if isinstance(section, dict):
            kept[name] = {key: value for key, value in section.items() if key not in fields_set}
    return kept


def _merge(base: Tree, top: Tree) -> Tree:
    """``top`` over ``base``. Keys given on top of a section that only names its preset keep the preset."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, str):
            below = {"preset": below}
        if isinstance(below, dict) and isinstance(value, dict):
            value = _merge(below, value)
        merged[key] = value
    return merged


def _parse_override(override: str) -> Tree:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r}: an override reads section.key=value, such as train.steps=100")
    try:
        parsed = yaml.safe_load(value)
    except Exception as error:  # as in _parsed
        raise ConfigError(f"{override!r}: the value cannot be parsed: {_one_line(error)}") from error
    *sections, last = key.split(".")
    tree: Tree = {last: parsed}
    for section in reversed(sections):
        tree = {section: tree}
    return tree


def _complete(section: Tree, kind: type[EMSettings | TrainSettings], later: Tree) -> Tree:
    """``section`` with the keys it lacks because an earlier version wrote it, or as it is."""
    known_then = {each.name for each in fields(kind)} - later.keys()
    return {**later, **section} if known_then <= section.keys() else section


def _section(tree: Tree, name: str, source: str, where: str = "") -> Tree:
    section = tree.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: {where}{name} is a section of keys, not {shown(section)}")
    return section


def _with_preset(section: Tree, presets: Mapping[str, Tree], default: str, where: str, source: str) -> Tree:
    """The values of the preset the section names, or of the default, with the section's own on top."""
    section = dict(section)
    name = _known_preset(section.pop("preset", default), presets, f"{where}.preset", source)
    return {**presets[name], **section}


def _known_preset(name: object, presets: Collection[str], where: str, source: str) -> str:
    if not isinstance(name, str) or name not in presets:
        raise ConfigError(f"{source}: {where} is {shown(name)}: choose {', '.join(presets)}")
    return name


def _refuse_unknown(tree: Tree, kind: type, source: str, where: str) -> None:
    """Unknown keys are refused by name, with the known ones; true and false, which pydantic reads as 1 and 0,
    are refused as numbers."""
    known = {each.name: each.type for each in fields(kind)}
    for key, value in tree.items():
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{source}: unknown key {f'{where}{key}'!r}; there are: {', '.join(known)}{meant}"
            )
        rule = _rule_for_booleans(value, known[key])
        if rule and rule.endswith("number"):
            raise ConfigError(f"{source}: {where}{key}: {rule}, got {shown(value)}")
        section = known[key]
        if isinstance(value, dict) and isinstance(section, type) and is_dataclass(section):
            _refuse_unknown(value, section, source, f"{where}{key}.")


def _rule_for_booleans(value: object, hint: object) -> str | None:
    """What true, false or a list with one of them breaks of ``hint``; deeper down a file may be endless."""
    given = tuple(value) if isinstance(value, list) else value
    parts = given if isinstance(given, tuple) else (given,)
    return broken_rule(given, hint) if any(isinstance(part, bool) for part in parts) else None


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
