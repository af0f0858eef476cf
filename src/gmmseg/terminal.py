"""What a command shows in the terminal: lines of text, remarks, a progress bar."""

import os
from typing import TYPE_CHECKING

import typer

from gmmseg.printable import printable

if TYPE_CHECKING:
    from tqdm import tqdm


def say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print lines of text; names in it may hold anything, and none of it may steer the terminal."""
    typer.echo(printable(text, keep="\n"), nl=nl, err=err)


def note(message: str) -> None:
    """A remark that is no result: one line to the error stream."""
    say(f"gmmseg: {printable(message)}", err=True)


class Bar:
    """A progress callback (done, total, name) that draws a bar; starts again when the count does."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.bar: tqdm | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, done: int, total: int | None, name: str = "") -> None:
        from tqdm import tqdm

        if self.bar is None or done < self.bar.n or total != self.bar.total:
            self.__exit__()
            silent = os.environ.get("RANK", "0") != "0"  # one bar for all processes
            self.bar = tqdm(total=total, desc=self.what, unit="image", dynamic_ncols=True, disable=silent)
        self.bar.update(done - self.bar.n)
