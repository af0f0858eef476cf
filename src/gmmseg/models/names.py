"""What to say about a name that nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The end of a message: the known names most like ``name``, or nothing where none is like it."""
    spelling = {each.casefold(): each for each in known}
    near = [f"{prefix}{spelling[each]}" for each in get_close_matches(name.casefold(), spelling, 3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
