"""A trained segmenter with one class more, one less, another name, or two classes as one.

Nothing is trained, and the segmenter given is left alone: each function returns a new one. Tensors that stay
are shared by both.
"""

import math
import warnings
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from gmmseg.class_colours import fresh_colour
from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture
from gmmseg.mixture.changing import appended, merged, without
from gmmseg.mixture.few_samples import AS_CHOSEN, FewSamples, NewClass, fit_class
from gmmseg.mixture.links import LinearTerms, linear_terms, link_of_rows
from gmmseg.models.classes import Rows, match_classes, transplanted
from gmmseg.models.companion import Companion, Members, say_left_behind
from gmmseg.models.conversion import share_weights
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.heads import GMMHead
from gmmseg.models.names import meant
from gmmseg.models.recipe import Recipe, with_classes
from gmmseg.models.segmenter import Segmenter
from gmmseg.printable import printable

NO_COMPONENTS = (
    "this model has no mixtures of cells, and so no components to show training pixels of: a softmax head "
    "has none, and those of a Mask2Former are of queries"
)


@dataclass(frozen=True, eq=False)
class Samples:
    """Labelled cells of a new class: ``points`` (n d) of the head's mixtures.

    ``maps`` (m f): what a density beside the head sees in such cells; only where the segmenter has one.
    ``images``: of how many images the cells are, where that is known.
    """

    points: Tensor
    maps: Tensor | None = None
    images: int | None = None


def with_class(
    segmenter: Segmenter,
    name: str,
    samples: Samples,
    *,
    components: int | None = None,
    offset: float | None = None,
    settings: FewSamples = AS_CHOSEN,
) -> Segmenter:
    """The segmenter with one more class, the last; log densities of the others stay bit for bit, and so do
    the logits that the head makes of them.

    ``offset``: log prior of the class in the link; by default the mean of the other classes'. A calibration
    belongs to the old weights and is left behind. Companions do not know the new class, so it has the odds
    that the head gives it. ValueError for a model without mixtures of cells, and for a name that it has.
    """
    mixture = mixtures_of_cells(segmenter)
    names = _names(segmenter)
    refuse_name(segmenter, name)
    if len(names) + 1 > IGNORE:
        raise ValueError(f"{len(names)} classes already: no more than {IGNORE} fit beside the ignore label")
    new = fit_class(samples.points, mixture, images=samples.images, components=components, settings=settings)
    prior = float(link_terms(segmenter).offsets.mean()) if offset is None else offset
    changed = _changed(
        segmenter,
        (*names, name),
        (*range(len(names)), None),
        appended(mixture, new, prior),
        _density_with_class(segmenter.density, samples, components, settings),
    )
    if segmenter.colours is not None:
        changed.colours = (*segmenter.colours, fresh_colour(segmenter.colours))
    return changed


def without_class(segmenter: Segmenter, name: str) -> Segmenter:
    """The segmenter without one class; its pixels go to the next best class, or are stranger than before."""
    mixture, names = mixtures_of_cells(segmenter), _names(segmenter)
    gone = class_index(names, name)
    if len(names) == 1:
        raise ValueError(f"{name} is the only class: a model needs at least one")
    kept = [row for row in range(len(names)) if row != gone]
    density = segmenter.density
    changed = _changed(
        segmenter,
        tuple(names[row] for row in kept),
        tuple(kept),
        without(mixture, gone),
        None if density is None else _with_mixture(density, without(density.mixture, gone)),
    )
    if segmenter.colours is not None:
        changed.colours = tuple(segmenter.colours[row] for row in kept)
    return changed


def with_class_renamed(segmenter: Segmenter, name: str, to: str) -> Segmenter:
    """The same segmenter, calibration and all, where one class has another name."""
    names = _names(segmenter)
    row = class_index(names, name)
    _refuse_name(to, tuple(other for other in names if other != names[row]))
    renamed = cast(Segmenter, share_weights(segmenter))
    renamed.label_names = tuple(to if each == row else other for each, other in enumerate(names))
    if segmenter.recipe is not None:
        renamed.recipe = with_classes(segmenter.recipe, renamed.label_names)
    return renamed


def with_classes_merged(segmenter: Segmenter, name: str, other: str, *, to: str | None = None) -> Segmenter:
    """The segmenter with ``other`` taken into ``name``, at its place, under its name or the name ``to``.

    The density of the new class is the sum of both by their shares, which are those of the link's priors.
    """
    mixture, names = mixtures_of_cells(segmenter), _names(segmenter)
    row, gone = class_index(names, name), class_index(names, other)
    if row == gone:
        raise ValueError(f"{name} and {other} are the same class: name two")
    to = names[row] if to is None else to
    _refuse_name(to, tuple(each for place, each in enumerate(names) if place not in (row, gone)))
    log_shares, prior = _shares(link_terms(segmenter), row, gone)
    kept = tuple(each for each in range(len(names)) if each != gone)
    density = segmenter.density
    changed = _changed(
        segmenter,
        tuple(to if each == row else names[each] for each in kept),
        tuple(None if each == row else each for each in kept),
        merged(mixture, row, gone, log_shares, prior),
        None
        if density is None
        else _with_mixture(density, merged(density.mixture, row, gone, log_shares, 0.0)),
        tuple((each, gone) if each == row else (each,) for each in kept),
    )
    if segmenter.colours is not None:
        changed.colours = tuple(segmenter.colours[each] for each in kept)
    return changed


def mixtures_of_cells(segmenter: Segmenter) -> ClassMixture:
    """The mixtures of a segmenter whose classes can be changed; ValueError, with the reason, for others."""
    if not segmenter.points_are_cells:
        raise ValueError(
            f"a {type(segmenter).__name__} finds objects by queries that were trained for its classes, and "
            "no query looks for a new one: train it with the class among its labels, or use a network that "
            "classifies cells, such as SegFormer or one of the zoo"
        )
    if segmenter.mixture is None:
        raise ValueError(
            "a softmax head learns borders between the classes it has, and has no density to put another "
            "class beside: gmmseg fit MODEL --on features --data NAME:ROOT:train --out DIR gives it mixtures "
            "without training; change the classes of that model"
        )
    segmenter.mixture.refuse_em()
    link_terms(segmenter)
    return segmenter.mixture


def link_terms(segmenter: Segmenter) -> LinearTerms:
    """Temperature and log priors (c) of a generative head's link."""
    assert isinstance(segmenter.head, GMMHead)
    return linear_terms(segmenter.head.link, segmenter.head.mixture.log_prior)


@torch.no_grad()
def set_log_prior_(segmenter: Segmenter, index: int, offset: float) -> None:
    """Set the log prior, in the link, of one class of a segmenter that nobody has calibrated yet."""
    mixture = mixtures_of_cells(segmenter)
    mixture.log_prior[index] += offset - link_terms(segmenter).offsets[index]
    segmenter.calibration = None


def class_index(names: tuple[str, ...], name: str) -> int:
    """The place of a class by its name; case, _ and - make no difference."""
    found = match_classes(names, (name,))[0]
    if found is None:
        raise ValueError(f"no class {name!r}{meant(name, names)}; the classes are {', '.join(names)}")
    return found


def refuse_name(segmenter: Segmenter, name: str) -> None:
    """ValueError if a segmenter can have no more class of this name."""
    _refuse_name(name, _names(segmenter))


def _names(segmenter: Segmenter) -> tuple[str, ...]:
    return segmenter.label_names or tuple(f"class {index}" for index in range(segmenter.num_classes))


def _refuse_name(name: str, taken: tuple[str, ...]) -> None:
    if not name.strip():
        raise ValueError("a class needs a name")
    if printable(name) != name:
        raise ValueError(f"{name!r}: a name of a class is one line, without control characters")
    found = match_classes(taken, (name,))[0]
    if found is not None:
        raise ValueError(f"there is a class {taken[found]!r} already: choose another name than {name!r}")


def _shares(terms: LinearTerms, row: int, other: int) -> tuple[Tensor, float]:
    """Log shares (2) of two classes in their union, and the log prior of the union.

    With a temperature of one these are the shares of the priors, and the sum of both priors. With another
    one, they keep the border between the two where it was.
    """
    both = terms.offsets[[row, other]].double()
    log_shares = (both / terms.temperature).log_softmax(0)
    prior = float(both[0] - terms.temperature * log_shares[0])
    return log_shares.to(terms.offsets), prior


def _changed(
    segmenter: Segmenter,
    names: tuple[str, ...],
    rows: Rows,
    mixture: ClassMixture,
    density: CellDensity | None,
    members: Members | None = None,
) -> Segmenter:
    """The segmenter for the classes ``names`` with this mixture; the rest of it as ``rows`` say.

    ``members``: which classes of before each class is, where that is more than ``rows`` say.
    """
    assert isinstance(segmenter.head, GMMHead)
    head = cast(GMMHead, share_weights(segmenter.head))
    head.mixture, head.link = mixture, link_of_rows(head.link, rows)
    changed = _rebuilt(segmenter, names, rows, mixture.num_components)
    changed.head = head
    changed.density = density
    members = members or tuple(() if row is None else (row,) for row in rows)
    beside = [cast(Companion, each).of_classes(members) for each in segmenter.companions]
    changed.companions = nn.ModuleList(each for each in beside if each is not None)
    say_left_behind(nn.ModuleList(each for each, kept in zip(segmenter.companions, beside) if kept is None))
    changed.to(mixture.means.device)
    changed.label_names, changed.colours = names, None
    changed.inference, changed.calibration = segmenter.inference, None
    return changed.train(segmenter.training)


def _rebuilt(segmenter: Segmenter, names: tuple[str, ...], rows: Rows, components: int) -> Segmenter:
    """The network for other classes; what is made for one class only keeps its rows, as in `adapt`."""
    recipe = segmenter.recipe
    if recipe is None:
        if len(segmenter.auxiliary_heads):
            raise ValueError(
                "this segmenter was assembled by hand with auxiliary heads, and nobody knows how to make "
                "those for other classes: leave them out, they serve training alone"
            )
        return cast(Segmenter, share_weights(segmenter))
    changed: Recipe = {**with_classes(recipe, names), "head": {**recipe["head"], "components": components}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that are about to be filled in
        return transplanted(segmenter, changed, rows)


def _density_with_class(
    density: CellDensity | None, samples: Samples, components: int | None, settings: FewSamples
) -> CellDensity | None:
    if density is None:
        return None
    if samples.maps is None:
        raise ValueError(
            "this model has a density beside its head: give the new class's cells of its maps, too"
        )
    points = torch.cat([density.coordinates(part) for part in samples.maps.split(1 << 14)])
    new: NewClass = fit_class(
        points, density.mixture, images=samples.images, components=components, settings=settings
    )
    return _with_mixture(density, appended(density.mixture, new, -math.log(density.mixture.num_classes)))


def _with_mixture(density: CellDensity, mixture: ClassMixture) -> CellDensity:
    """The same density with other mixtures."""
    settings = DensitySettings(mixture.num_components, density.settings.channels)
    changed = CellDensity(mixture.num_classes, settings)
    changed.coordinates, changed.mixture = density.coordinates, mixture
    return changed.train(density.training)
