"""Other classes, or another head, for a trained segmenter: what fits is kept, the rest starts fresh."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gmmseg.models.companion import say_left_behind
from gmmseg.models.heads import HeadSettings
from gmmseg.models.pretrained import from_recipe
from gmmseg.models.recipe import Recipe, with_classes
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.weights import listed

NO_CLASSIFIER = "has mixtures and no softmax classifier, so all of the softmax head starts fresh"
Rows = tuple[int | None, ...]
"""For each class that is wanted, which class of the trained network it was; None: none of them."""


@dataclass(frozen=True)
class Wanted:
    """What a network shall become: its head, its number of classes (None: as it has), and their names."""

    settings: HeadSettings
    num_classes: int | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {self.num_classes}")
        if self.names is not None and self.num_classes not in (None, len(self.names)):
            raise ValueError(f"{len(self.names)} class names for {self.num_classes} classes")

    @property
    def count(self) -> int | None:
        """How many classes are wanted; None where the network decides."""
        return len(self.names) if self.names is not None else self.num_classes


def adapt(segmenter: Segmenter, wanted: Wanted, origin: str) -> Segmenter:
    """``segmenter`` with the classes and the head that are wanted; itself where it has them already.

    Classes are matched by name where both sides have names. A class that both know keeps its rows of the
    classifier, of the auxiliary classifiers and, where the head stays as it is, of the mixtures. A warning
    that begins with ``origin`` says which classes start fresh.
    """
    rows = _rows(segmenter, wanted, origin)
    same = rows == tuple(range(segmenter.num_classes))
    recipe = segmenter.recipe or {}
    head = asdict(wanted.settings)
    if not same or recipe.get("head") != head:
        names = wanted.names or (segmenter.label_names if same else None)
        changed: Recipe = {
            **with_classes(recipe, names or tuple(f"class {i}" for i in range(len(rows)))),
            "head": head,
        }
        adapted = from_recipe(changed if recipe else None, None, origin)
        if segmenter.mixture is not None and adapted.mixture is None:
            _tell(f"{origin}: {NO_CLASSIFIER}")
        say_left_behind(segmenter.companions)
        _transplant(segmenter, adapted, rows, same_head=recipe.get("head") == head)
        adapted.colours = segmenter.colours if same else None
        adapted.label_names = segmenter.label_names if same else None
        adapted.inference = segmenter.inference
        segmenter = adapted.train(segmenter.training)
    segmenter.label_names = wanted.names or segmenter.label_names
    return segmenter


def match_classes(own: Sequence[str], wanted: Sequence[str]) -> Rows:
    """For each wanted name the place of the same name in ``own``; case, _ and - make no difference."""
    places = {_plain(name): place for place, name in reversed(list(enumerate(own)))}
    return tuple(places.get(_plain(name)) for name in wanted)


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _rows(segmenter: Segmenter, wanted: Wanted, origin: str) -> Rows:
    own = segmenter.num_classes
    if wanted.names is not None and segmenter.label_names is not None:
        rows = match_classes(segmenter.label_names, wanted.names)
        fresh = [name for name, row in zip(wanted.names, rows, strict=True) if row is None]
        kept = [name for name in wanted.names if name not in fresh]
        if fresh:
            known = f"{len(kept)} of {len(rows)} classes are known by name{listed(kept)}"
            _tell(f"{origin}: {known}; these start fresh{listed(fresh)}")
        return rows
    if wanted.count in (None, own):
        if wanted.names is not None:
            _tell(f"{origin}: its {own} classes have no names, so they are taken in the order of yours")
        return tuple(range(own))
    _tell(f"{origin}: has {own} classes; all {wanted.count} that are wanted start fresh")
    return (None,) * (wanted.count or 0)


def _tell(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def transplanted(segmenter: Segmenter, recipe: Recipe, rows: Rows) -> Segmenter:
    """The network of ``recipe`` with the tensors of ``segmenter``, row by row where they belong to classes.

    Its head is left as it was built.
    """
    changed = from_recipe(recipe, None, "")
    _transplant(segmenter, changed, rows, same_head=False)
    changed.mean, changed.std = segmenter.mean, segmenter.std
    return changed


@torch.no_grad()
def _transplant(old: Segmenter, new: Segmenter, rows: Rows, *, same_head: bool) -> None:
    """Fill ``new`` with the tensors of ``old``, row by row where they belong to classes."""
    source, target = old.state_dict(), new.state_dict()
    per_class = _per_class(old, source, target) if rows != tuple(range(old.num_classes)) else set()
    for name, value in target.items():
        if name not in source or (name.startswith("head.") and not same_head):
            continue
        if name in per_class:
            _copy_rows(source[name], value, rows, old.num_classes)
        elif source[name].shape == value.shape:
            value.copy_(source[name])


def _per_class(old: Segmenter, source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors with a row for each class: those that are larger with one class more."""
    names = tuple(f"class {i}" for i in range(old.num_classes + 1))
    more = from_recipe(with_classes(old.recipe or {}, names), None, "").state_dict()
    return {name for name in source.keys() & target.keys() if more[name].shape != source[name].shape}


def _copy_rows(old: Tensor, new: Tensor, rows: Rows, num_classes: int) -> None:
    """Rows of ``old`` into their places; one row more than classes is "no object", the last of both."""
    places = [*rows, num_classes] if len(old) == num_classes + 1 else rows
    for place, row in enumerate(places):
        if row is not None:
            new[place] = old[row]
