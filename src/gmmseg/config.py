"""Configuration as typed data: YAML or TOML in, a `Config` out, anything unknown refused.

Nothing below the composition root (run.py) knows that files exist.
"""

import tomllib
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gmmseg.mixture.settings import PRESETS, EMSettings
from gmmseg.models.heads import HEAD_PRESETS, HeadSettings, head_settings
from gmmseg.models.settings import InferenceSettings
from gmmseg.training.settings import TrainSettings

SHIPPED = files("gmmseg") / "configs"


OBSOLETE_EM = ("unit_norm_means",)
"""Keys of ``em`` that configurations written by earlier versions may hold: the head's projection says it."""


class ConfigError(ValueError):
    """A configuration that cannot be understood; the message names the file and the key."""


@dataclass(frozen=True)
class DataSettings:
    """What is trained and validated on. ``name`` as in ``gmmseg data list``."""

    name: str = "scenes"
    root: str | None = None
    train_split: str = "train"
    validation_split: str | None = "val"
    held_out: tuple[str, ...] = ()
    """Classes hidden from training (their pixels are ignored), for an open-world test to look for."""
    crop: tuple[int, int] = (96, 160)
    """Height and width of training crops."""
    scale: tuple[float, float] = (0.5, 2.0)
    short_side: int | None = None
    """Images are first resized to this shorter side."""
    balanced: bool = False
    """Draw a class first and then an image that holds it, instead of images evenly."""
    workers: int = 2
    keep: bool = False
    """Keep samples in memory once read: for small sets and few workers."""


@dataclass(frozen=True)
class ModelSettings:
    """``name`` as in ``gmmseg zoo``; ``weights`` of the backbone: none, "pretrained" (hub) or a file."""

    name: str = "tiny_unet"
    weights: str | None = None
    head: HeadSettings = HEAD_PRESETS["default"]


@dataclass(frozen=True)
class Config:
    """Everything a training run needs to know."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = "run"
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    em: EMSettings = PRESETS["default"]
    train: TrainSettings = field(default_factory=TrainSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)


def load_config(source: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """The configuration of a file, or of a shipped name, with ``section.key=value`` overrides on top."""
    merged = read_tree(find_config(source))
    for override in overrides:
        merged = _merge(merged, _parse_override(override))
    return parse_config(merged, str(source))


def parse_config(tree: dict[str, Any], source: str = "configuration") -> Config:
    """A Config from nested dictionaries; presets named in ``em`` and ``model.head`` are filled in."""
    tree = {key: value for key, value in tree.items() if key != "include"}
    em, model = _section(tree, "em", source), _section(tree, "model", source)
    em = {key: value for key, value in em.items() if key not in OBSOLETE_EM}
    tree["em"] = _with_preset(em, {name: asdict(each) for name, each in PRESETS.items()}, "em", source)
    if "head" in model:
        head = {"preset": model["head"]} if isinstance(model["head"], str) else dict(model["head"])
        heads = {name: asdict(head_settings(name)) for name in (*HEAD_PRESETS, "gmm")}
        tree["model"] = {**model, "head": _with_preset(head, heads, "model.head", source)}
    _refuse_unknown(tree, Config, source, "")
    try:
        return TypeAdapter(Config).validate_python(tree)
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()
        )
        raise ConfigError(f"{source}:\n{problems}") from None


def dump_config(config: Config) -> str:
    """The whole configuration as YAML, every default spelt out; `load_config` reads it back."""
    return yaml.safe_dump(config_tree(config), sort_keys=False)


def config_tree(config: Config) -> dict[str, Any]:
    """The whole configuration as nested dictionaries of plain values; `parse_config` reads it back."""
    return _plain(asdict(config))


def find_config(source: str | Path) -> Path:
    """The path of a file, or of a configuration shipped under that name."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml", ".toml"):
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
        return path
    shipped = Path(str(SHIPPED)) / f"{source}.yaml"
    if not shipped.is_file():
        raise ConfigError(
            f"{source}: neither a .yaml or .toml file nor a shipped configuration; there are: "
            + ", ".join(shipped_configs())
        )
    return shipped


def shipped_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(path.stem for path in Path(str(SHIPPED)).glob("*.yaml"))


def read_tree(path: Path) -> dict[str, Any]:
    """A file's content merged over the files its ``include`` names, which lie relative to it."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text) or {}
    except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be parsed: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of sections, not a {type(tree).__name__}")
    base: dict[str, Any] = {}
    for include in tree.pop("include", []):
        included = path.parent / include
        if not included.is_file():
            raise ConfigError(f"{path}: includes {include}, which is not there")
        base = _merge(base, read_tree(included))
    return _merge(base, tree)


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
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


def _parse_override(override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r}: an override reads section.key=value, such as train.steps=100")
    tree: Any = yaml.safe_load(value)
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return tree


def _section(tree: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    section = tree.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: {name} is a section of keys, not {section!r}")
    return section


def _with_preset(
    section: dict[str, Any], presets: dict[str, dict], where: str, source: str
) -> dict[str, Any]:
    """The named preset's values with the section's own on top."""
    section = dict(section)
    name = section.pop("preset", "default")
    if name not in presets:
        raise ConfigError(f"{source}: {where}.preset is {name!r}: choose {', '.join(presets)}")
    return {**presets[name], **section}


def _refuse_unknown(tree: dict[str, Any], kind: Any, source: str, where: str) -> None:
    """Unknown keys are refused by name, with the known ones."""
    known = {each.name: each.type for each in fields(kind)}
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"{source}: unknown key {where + key!r}; there are: {', '.join(known)}")
        if isinstance(value, dict) and hasattr(known[key], "__dataclass_fields__"):
            _refuse_unknown(value, known[key], source, f"{where}{key}.")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
