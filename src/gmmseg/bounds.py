"""Types of settings that say which values are allowed, and the check that holds a settings object to them.

A field is annotated with one of these types, a `Literal` for a closed set of words, or a plain class; its
class calls `check_bounds` in ``__post_init__``. The bounds are those of `annotated_types`, which pydantic
reads too: a configuration file is refused key by key, and an object made in Python by the same annotation.
"""

import operator
import re
import reprlib
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST = 2**31 - 1
"""More than any count needs; beyond it, sizes no longer fit the integers of the libraries below."""
LONGEST_NAME = 100
"""Characters of a name that becomes a folder; file systems stop at 255 bytes."""


class _FolderName:
    """Marks text that names one folder: no path, nothing hidden, no control characters."""

    pattern = re.compile(rf"[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]{{0,{LONGEST_NAME - 1}}}")
    rule = f"must name one folder: up to {LONGEST_NAME} characters, no / or \\ and no dot in front"


Count = Annotated[int, Ge(1), Le(MOST)]
"""A number of things of which there is at least one."""
CountOrNone = Annotated[int, Ge(0), Le(MOST)]
"""A number of things of which there may be none."""
Side = Annotated[int, Ge(1), Le(65_536)]
"""A side of an image or window in pixels."""
SideOrNone = Annotated[int, Ge(0), Le(65_536)]
"""The same, or 0 for none."""
Workers = Annotated[int, Ge(0), Le(1024)]
"""Processes that load images; 0 for none beside the one that trains."""
Seed = Annotated[int, Ge(0), Lt(2**32)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Factor = Annotated[float, Ge(0.01), Le(100)]
"""How much larger an image is made: beyond this a pixel is the whole image, or the image one pixel."""
Single = Annotated[float, Ge(-3.4028234e38), Le(3.4028234e38)]
"""A number that single precision can hold, as scores are."""
Temperature = Annotated[float, Ge(1e-6), Le(1e6)]
"""What logits may be divided by without leaving single precision."""
Share = Annotated[float, Ge(0), Le(1)]
Rate = Annotated[float, Ge(1e-6), Lt(1)]
"""A share that is neither none nor all: how often something may happen."""
Decay = Annotated[float, Ge(0), Lt(1)]
"""What is kept of an old value when a new one arrives: all of it would never learn."""
Text = Annotated[str, MinLen(1)]
FolderName = Annotated[str, _FolderName()]

_RULES: tuple[tuple[type, str, Callable[[float, float], bool], str], ...] = (
    (Ge, "ge", operator.ge, "must be at least"),
    (Gt, "gt", operator.gt, "must be more than"),
    (Le, "le", operator.le, "must be at most"),
    (Lt, "lt", operator.lt, "must be less than"),
)
_KINDS: dict[object, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}


def check_bounds(settings: "DataclassInstance") -> None:
    """Hold every field of a settings object to its annotation: ValueError names the field and its rule.

    Lists become tuples, and numbers of other libraries Python's own, as in settings read from a file.
    """
    hints = _hints(type(settings))
    for field in fields(settings):
        value = plain(getattr(settings, field.name))
        broken = broken_rule(value, hints[field.name])
        if broken:
            raise ValueError(f"{field.name} {broken}, got {shown(value)}")
        object.__setattr__(settings, field.name, _as_floats(value, hints[field.name]))  # settings are frozen


def plain(value: object) -> object:
    """``value`` with tuples for lists, and int and float for other kinds of numbers."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _as_floats(value: object, hint: object) -> object:
    """``value``, which breaks no rule of ``hint``, with a float wherever the hint says float."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _as_floats(value, inner[0])
    if origin in (Union, UnionType):
        fitting = (each for each in inner if each is not NoneType and not broken_rule(value, each))
        return value if value is None else _as_floats(value, next(fitting))
    if origin is tuple and isinstance(value, tuple):
        return tuple(map(_as_floats, value, inner[:1] * len(value) if inner[-1:] == (...,) else inner))
    return float(value) if hint is float and isinstance(value, int) else value


def broken_rule(value: object, hint: object) -> str | None:
    """What ``value`` breaks of the annotation ``hint``, such as "must be at least 1"; None if nothing."""
    origin = get_origin(hint)
    if origin is Annotated:
        kind, *marks = get_args(hint)
        return broken_rule(value, kind) or next(
            filter(None, (_broken_mark(value, mark) for mark in marks)), None
        )
    if origin is Literal:
        words = get_args(hint)
        return None if value in words else f"must be one of {', '.join(map(str, words))}"
    if origin in (Union, UnionType):
        return _broken_choice(value, get_args(hint))
    if origin is tuple:
        return _broken_tuple(value, get_args(hint))
    return _broken_kind(value, cast(type, origin or hint))


def shown(value: object, most: int = 80) -> str:
    """``value`` for a message: one line, and not longer than ``most`` characters."""
    text = reprlib.repr(value)  # a nested value may be far larger than the file it came from
    return text if len(text) <= most else text[: most - 3] + "..."


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)


def _broken_choice(value: object, hints: tuple[object, ...]) -> str | None:
    """The rule of the last alternative that is not None, unless one of them fits."""
    broken = [broken_rule(value, hint) for hint in hints if hint is not NoneType]
    if (value is None and NoneType in hints) or None in broken:
        return None
    return broken[-1]


def _broken_tuple(value: object, hints: tuple[object, ...]) -> str | None:
    each = (hints[0],) * len(value) if hints[-1:] == (...,) and isinstance(value, tuple) else hints
    if not isinstance(value, tuple) or len(value) != len(each):
        return "must be a list" if hints[-1:] == (...,) else f"must be a list of {len(hints)}"
    return next(filter(None, map(broken_rule, value, each)), None)


def _broken_kind(value: object, kind: type) -> str | None:
    wanted, words = _KINDS.get(kind, (kind, kind.__name__))
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        return f"must be {words}"
    # NaN too, and integers no float can hold.
    if kind is float and not abs(cast(float, value)) <= sys.float_info.max:
        return "must be finite"
    return None


def _broken_mark(value: object, mark: object) -> str | None:
    """What ``value``, of the kind that the bound is for, breaks of it."""
    for kind, name, holds, words in _RULES:
        if isinstance(mark, kind) and not holds(cast(float, value), getattr(mark, name)):
            return f"{words} {getattr(mark, name)}"
    if isinstance(mark, MinLen) and len(cast(str, value)) < mark.min_length:
        return "must not be empty"
    if isinstance(mark, _FolderName) and not mark.pattern.fullmatch(cast(str, value)):
        return mark.rule
    return None
