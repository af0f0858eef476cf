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

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gmmseg.float_order import keys

BIN_BITS = 11
NUM_BINS = 1 << (32 - BIN_BITS)
SLOT_BITS = 18
NUM_SLOTS = 1 << SLOT_BITS
_CHUNK = 1 << 17  # keys counted at a time: they stay in the cache
_WORTH_THREADS = 1 << 19  # scores; fewer are counted before a thread has begun


class Places(Protocol):
    """Which counter of a table each key is counted in."""

    def slots(
        self, keys: NDArray[np.uint32], out: NDArray[np.uint32] | None = None
    ) -> NDArray[np.uint32]: ...


class Bins:
    """The table with a counter of its own for each value of a key's upper bits."""

    def slots(self, keys: NDArray[np.uint32], out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """(n) counter of each key (n), in ``out`` if that is given."""
        return np.right_shift(keys, BIN_BITS, out=out)


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


BINS = Bins()
GROUPS = (Folding(6, np.uint32(3266489917)),)
SINGLE = (Folding(0, np.uint32(2654435769)), Folding(0, np.uint32(2246822519)))
FOLDINGS = GROUPS + SINGLE


def count_(bins: NDArray, folded: NDArray, values: NDArray[np.float32], anomalous: NDArray[np.bool_]) -> None:
    """Add scores (n) to ``bins`` (2 bins) and ``folded`` (tables 2 slots): [0] all, [1] the anomalous.

    Large sets are counted by as many threads as torch may use. Each counts into tables of its own, so nothing
    depends on how many there are.
    """
    tables: list[tuple[NDArray, Places]] = [(bins, BINS), *zip(folded, FOLDINGS)]
    threads = min(torch.get_num_threads(), len(tables)) if len(values) >= _WORTH_THREADS else 1
    shares = [tables[start::threads] for start in range(threads)]
    if threads == 1:
        _count_into_(shares[0], values, anomalous)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda share: _count_into_(share, values, anomalous), shares))


def _count_into_(
    tables: Sequence[tuple[NDArray, Places]], values: NDArray[np.float32], anomalous: NDArray[np.bool_]
) -> None:
    """Add scores (n) to some of the tables (2 ...)."""
    # Memory for a chunk is taken once: fresh pages cost more than the arithmetic on them.
    size = min(_CHUNK, len(values))
    key_scratch, place_scratch = np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)
    once = torch.ones((), dtype=torch.int64)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        found = torch.from_numpy(np.flatnonzero(anomalous[start : start + _CHUNK]))
        chunk_keys = keys(chunk, out=key_scratch[: len(chunk)])
        for table, places_of in tables:
            places = places_of.slots(chunk_keys, out=place_scratch[: len(chunk)])
            # torch counts signed integers of 32 bits as they are, and lets other threads run meanwhile.
            index = torch.from_numpy(places.view(np.int32))
            everything, marked = torch.from_numpy(table)
            everything.index_add_(0, index, once.expand(len(index)))
            marked.index_add_(0, index[found], once.expand(len(found)))
