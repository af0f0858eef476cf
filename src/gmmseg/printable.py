"""Text that others wrote (file names, class names, messages), safe to show on a terminal."""

import unicodedata

_HARMFUL = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that move the cursor, turn the writing, break lines or cannot be encoded."""


def printable(text: str, keep: str = "") -> str:
    """``text`` with each control character but those in ``keep`` as its escape, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(_escape(each) if each not in keep and _harmful(each) else each for each in text)


def _harmful(character: str) -> bool:
    return unicodedata.category(character) in _HARMFUL


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
