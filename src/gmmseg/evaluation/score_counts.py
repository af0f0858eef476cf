"""Counting float32 scores of any range in constant memory: linear tables over their bit patterns.

`gmmseg.float_order` makes of a score an unsigned integer (its *key*) that orders like the number. Three kinds
of tables count keys. All are plain sums, so they merge exactly and no order can matter:

- ``bins`` has a counter of its own for each value of a key's upper 21 bits, 4,096 bins per octave of either
  sign;
- ``groups`` counts runs of 64 consecutive keys, modulo its size: two octaves fit without sharing a counter;
- ``single`` counts single keys, modulo its size, twice over.

Tables that count modulo their size share counters between distant scores; a pseudo-random shift for each
stretch of keys as long as the table keeps those meetings accidental, and differently so in the two rows of
``single``. ``gmmseg.evaluation.score_order`` reads the tables back.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gmmseg.float_order import keys

BIN_BITS = 11
NUM_BINS = 1 << (32 - BIN_BITS)
SLOT_BITS = 18
NUM_SLOTS = 1 << SLOT_BITS
_PIECE = 1 << 21  # pixels whose keys are held at a time
_KEYS = 1 << 16  # values whose keys are made at a time: they pass through the cache once
_BLOCK = 1 << 18  # keys whose places in a table are held at a time: few enough for the cache, and
# so many that threads seldom wait for each other between operations
_WORTH_THREADS = 1 << 21  # pixels from which threads save more than it takes to start them


@dataclass(frozen=True)
class Folding:
    """Where a table of 2^18 counters counts the runs of 2^``run_bits`` keys: modulo its size, with shifts."""

    run_bits: int
    multiplier: np.uint32

    def slots(self, keys: NDArray[np.uint32], out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """(n) counter of each key (n), in ``out`` if that is given."""
        slots = np.right_shift(keys, self.run_bits + SLOT_BITS, out=out)
        slots *= self.multiplier
        slots >>= np.uint32(32 - SLOT_BITS)
        slots += keys >> self.run_bits if self.run_bits else keys
        slots &= np.uint32(NUM_SLOTS - 1)
        return slots


GROUPS = (Folding(6, np.uint32(3266489917)),)
SINGLE = (Folding(0, np.uint32(2654435769)), Folding(0, np.uint32(2246822519)))
FOLDINGS = GROUPS + SINGLE


def _bins_of(keys: NDArray[np.uint32], out: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """(n) bin of each key (n), in ``out``."""
    return np.right_shift(keys, BIN_BITS, out=out)


class _PlacesOf(Protocol):
    """Which counter of a table counts each key (n), in ``out`` (n)."""

    def __call__(self, keys: NDArray[np.uint32], out: NDArray[np.uint32]) -> NDArray[np.uint32]: ...


class _Table(NamedTuple):
    """Counters (2 size), of all keys and of the anomalous ones, and where they count a key."""

    counters: NDArray[np.int64]
    places_of: _PlacesOf


def count_(bins: NDArray, folded: NDArray, values: NDArray[np.float32], anomalous: NDArray[np.bool_]) -> None:
    """Add scores (n) to ``bins`` (2 bins) and ``folded`` (tables 2 slots): [0] all, [1] the anomalous.

    Tables are filled side by side, by as many threads as torch may use; no two write the same table.
    """
    tables = [_Table(bins, _bins_of), *(_Table(*pair) for pair in zip(folded, (f.slots for f in FOLDINGS)))]
    workers = min(torch.get_num_threads(), len(tables)) if len(values) >= _WORTH_THREADS else 1
    with ThreadPoolExecutor(workers) if workers > 1 else nullcontext() as pool:
        side_by_side = map if pool is None else pool.map
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE]
            made = np.empty(len(piece), dtype=np.uint32)
            share = -(-len(piece) // workers)
            list(side_by_side(partial(_keys_, piece, made), range(0, len(piece), share), repeat(share)))
            # By index: few are anomalous, and picking by a mask looks at every pixel twice.
            found = made[np.flatnonzero(anomalous[start : start + _PIECE])]
            count = partial(_count_both_, made, found)
            list(side_by_side(count, tables))


def _keys_(values: NDArray[np.float32], made: NDArray[np.uint32], start: int, size: int) -> None:
    """Keys of ``size`` of the values (n) from ``start`` on, in the same places of ``made`` (n)."""
    end = min(start + size, len(values))
    for first in range(start, end, _KEYS):
        part = slice(first, min(first + _KEYS, end))
        keys(values[part], out=made[part])


def _count_both_(keys: NDArray[np.uint32], found: NDArray[np.uint32], table: _Table) -> None:
    """Count all ``keys`` in row 0 of a table and the ``found`` ones of them in row 1."""
    _count_(table.counters[0], table.places_of, keys)
    _count_(table.counters[1], table.places_of, found)


def _count_(counters: NDArray[np.int64], places_of: _PlacesOf, keys: NDArray[np.uint32]) -> None:
    """Add one to the counter of each key (n)."""
    size = min(_BLOCK, len(keys))
    slots, places = np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.int64)
    # Many keys are counted in a table of half the bytes first, which the processor's cache holds; to make one
    # for the bins, and to add it, would take longer than it saves.
    narrow = len(counters) <= NUM_SLOTS <= len(keys)
    counted = torch.zeros(len(counters), dtype=torch.int32) if narrow else torch.from_numpy(counters)
    ones = torch.ones(size, dtype=counted.dtype)
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK]
        here = places[: len(block)]
        np.copyto(here, places_of(block, out=slots[: len(block)]))
        # Quicker than NumPy, and other threads can work meanwhile.
        counted.scatter_add_(0, torch.from_numpy(here), ones[: len(block)])
    if narrow:
        counters += counted.numpy()
