"""What a label means: the one ignore value, and the names, colours and raw ids of a set of classes."""

from dataclasses import dataclass, field

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
        if len(self.colours) != len(self.names):
            raise ValueError(f"{len(self.names)} class names but {len(self.colours)} colours")

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, raw: np.ndarray, source: str) -> np.ndarray:
        """Raw ids (h w) -> train ids (h w) uint8; undefined values raise LabelError naming ``source``."""
        if raw.ndim != 2 or not np.issubdtype(raw.dtype, np.integer):
            raise LabelError(
                f"{source}: a label map must be a single-channel integer image, got shape {raw.shape}, {raw.dtype}"
            )
        defined = self.raw_to_train or {**{i: i for i in range(len(self))}, IGNORE: IGNORE}
        values, counts = np.unique(raw, return_counts=True)
        unknown = [(int(v), int(n)) for v, n in zip(values, counts) if int(v) not in defined]
        if unknown:
            listed = ", ".join(f"{value} ({count} pixels)" for value, count in unknown[:8])
            raise LabelError(f"{source}: label values this data set does not define: {listed}")
        low = int(values[0])
        table = np.full(int(values[-1]) - low + 1, IGNORE, dtype=np.uint8)
        for value in values:
            table[int(value) - low] = defined[int(value)]
        return table[raw.astype(np.int64) - low]
