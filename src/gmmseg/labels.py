"""What a label means: the one ignore value, and the names, colours and raw ids of a set of classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

IGNORE = 255
"""The label nobody learns from and nothing is judged on, in label maps and in anomaly masks."""


class LabelError(ValueError):
    """A label map holds values its data set does not define."""


@dataclass(frozen=True)
class LabelSpace:
    """Classes of a data set: ``names[i]`` and ``colours[i]`` (RGB, 0..255) belong to train id ``i``.

    ``raw_to_train`` maps every raw id the label files may hold to a train id or IGNORE; empty means
    the files hold train ids already, and IGNORE.
    """

    names: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]
    raw_to_train: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("a label space needs at least one class name")
        if len(self.names) > IGNORE:
            raise ValueError(
                f"{len(self.names)} classes: at most {IGNORE} fit beside the ignore label {IGNORE}"
            )
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise ValueError(
                f"several classes have the same name ({', '.join(repeated)}): give each a name of its own"
            )
        if len(self.colours) != len(self.names):
            raise ValueError(f"{len(self.names)} class names but {len(self.colours)} colours")
        wrong = {
            train for train in self.raw_to_train.values() if train != IGNORE and not 0 <= train < len(self)
        }
        if wrong:
            raise ValueError(
                f"raw ids are mapped to {sorted(wrong)}, which are not among the {len(self)} classes"
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def defined(self) -> dict[int, int]:
        """Raw id -> train id or IGNORE, for every value a label file may hold."""
        return self.raw_to_train or {**{i: i for i in range(len(self))}, IGNORE: IGNORE}

    @cached_property
    def _tables(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Lowest raw id, and by distance from it: the train id, and whether the raw id is defined."""
        low, high = min(self.defined), max(self.defined)
        train, known = np.full(high - low + 1, IGNORE, np.uint8), np.zeros(high - low + 1, bool)
        for raw, label in self.defined.items():
            train[raw - low], known[raw - low] = label, True
        return low, train, known

    def encode(self, raw: np.ndarray, source: str) -> np.ndarray:
        """Raw ids (h w) -> train ids (h w) uint8; undefined values raise LabelError naming ``source``."""
        if raw.ndim != 2 or not np.issubdtype(raw.dtype, np.integer):
            raise LabelError(
                f"{source}: a label map must be a single-channel integer image, "
                f"got shape {raw.shape}, {raw.dtype}"
            )
        low, train, known = self._tables
        if not raw.size:
            return np.zeros(raw.shape, np.uint8)
        if int(raw.min()) < low or int(raw.max()) >= low + len(train):
            raise self._undefined(raw, source)
        place = raw if low == 0 else raw.astype(np.int64) - low
        if not known.all() and not known[place].all():
            raise self._undefined(raw, source)
        return train[place]

    def _undefined(self, raw: np.ndarray, source: str) -> LabelError:
        values, counts = np.unique(raw, return_counts=True)
        unknown = [(int(v), int(n)) for v, n in zip(values, counts) if int(v) not in self.defined]
        listed = ", ".join(f"{value} ({count} pixels)" for value, count in unknown[:8])
        more = f" and {len(unknown) - 8} more values" if len(unknown) > 8 else ""
        return LabelError(f"{source}: label values this data set does not define: {listed}{more}")


def difference_of_classes(of_model: Sequence[str], of_data: Sequence[str]) -> str | None:
    """What speaks against two lists of class names meaning the same classes; None where nothing does.

    Libraries spell names differently, so some may differ; but no name may stand at another place, and not
    all may differ.
    """
    if len(of_model) != len(of_data):
        return f"{len(of_data)} classes, the model has {len(of_model)}"
    moved = [name for name, other in zip(of_model, of_data) if name != other and name in of_data]
    if moved:
        return f"the classes in another order ({moved[0]})"
    if not any(name == other for name, other in zip(of_model, of_data)):
        return f"other classes ({', '.join(of_data[:3])}, the model has {', '.join(of_model[:3])})"
    return None
