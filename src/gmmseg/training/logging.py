"""What a run says while it runs: JSON lines in a file, lines above a progress bar, optionally TensorBoard."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from gmmseg.atomic import naming, write_bytes
from gmmseg.printable import printable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TIMED_STEPS = 10
"""Steps after which a run says how long the others will take."""


class RunLog:
    """Writes ``log.jsonl`` in the run folder and shows a progress bar; silent on all but one process."""

    def __init__(self, folder: Path, steps: int, start: int, *, tensorboard: bool, active: bool) -> None:
        self.active = active
        if not active:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.board = _make_board(folder) if tensorboard else None
        self.path = folder / "log.jsonl"
        _drop_after(self.path, start)
        self.file = self.path.open("a", encoding="utf-8")
        self.bar = tqdm(total=steps, initial=start, unit="step", dynamic_ncols=True)
        self.said: set[str] = set()
        self.first = start + 1
        self.first_ended = 0.0

    def entry(self, step: int, kind: str, numbers: Mapping[str, object]) -> None:
        """One line in the log: ``{"step": ..., "kind": ..., ...}``; numbers also to TensorBoard."""
        if not self.active:
            return
        line = {"step": step, "kind": kind, "time": round(time.time(), 3), **numbers}
        with naming(self.path):
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        if self.board is not None:
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def advance(self, shown: dict[str, str]) -> None:
        """Move the bar by one step and show a few numbers beside it."""
        if self.active:
            self.bar.set_postfix(shown, refresh=False)
            self.bar.update()
            self._tell_expected_time(int(self.bar.n))

    def _tell_expected_time(self, step: int) -> None:
        """Once, if there is much to come. The first step is left out, which waits for the loader to start."""
        if step == self.first:
            self.first_ended = time.perf_counter()
        left = int(self.bar.total) - step
        if step - self.first + 1 == TIMED_STEPS <= left:
            seconds = (time.perf_counter() - self.first_ended) / (TIMED_STEPS - 1)
            self.tell(f"{left} steps are left: about {duration(left * seconds)}, and the validations")

    def tell(self, message: str) -> None:
        """Say one line above the bar."""
        if self.active:
            tqdm.write(printable(message))

    def tell_once(self, key: str, message: str) -> None:
        """`tell`, once per ``key``."""
        if self.active and key not in self.said:
            self.said.add(key)
            self.tell(message)

    def warn_once(self, key: str, message: str) -> None:
        """`tell_once` what may be wrong."""
        self.tell_once(key, f"warning: {message}")

    def close(self) -> None:
        if self.active:
            self.bar.close()
            self.file.close()
            if self.board is not None:
                self.board.close()


def duration(seconds: float) -> str:
    """In words of one unit: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _drop_after(path: Path, step: int) -> None:
    """Take out entries of steps that are about to run again, and a line that a kill cut short."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = "".join(line for line in lines if _step_of(line) <= step)
        write_bytes(path, kept.encode())


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"] if line.endswith("\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _make_board(folder: Path) -> "SummaryWriter":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("train.tensorboard needs TensorBoard: pip install 'gmmseg[tensorboard]'") from error
    return SummaryWriter(str(folder / "tensorboard"))
