"""What a run says while it runs: a JSON line per entry, a progress bar, optionally TensorBoard."""

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
        self.warned: set[str] = set()

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

    def warn_once(self, key: str, message: str) -> None:
        """Say something above the bar, once per ``key``."""
        if self.active and key not in self.warned:
            self.warned.add(key)
            tqdm.write(f"warning: {printable(message)}")

    def close(self) -> None:
        if self.active:
            self.bar.close()
            self.file.close()
            if self.board is not None:
                self.board.close()


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
