"""The Hugging Face hub: asked only where it is meant, given up within seconds where it does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

PATIENCE = 5.0
"""Seconds to wait for an answer."""


class HubError(OSError):
    """Something cannot be had from the hub; the message says what to do instead."""


@contextmanager
def offline() -> Iterator[None]:
    """Inside, nothing is fetched: the hub's library finds what earlier downloads left, or raises OSError."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def fetching(what: str, instead: str) -> Iterator[None]:
    """Inside, ``what`` may be fetched; failure is one line that ends in ``instead``.

    Where the hub does not answer, earlier downloads are used or the attempt fails at once: its library
    would try again for minutes.
    """
    away = not _answers()
    try:
        with offline() if away else nullcontext():
            yield
    except OSError as error:
        reason = (
            "the Hugging Face hub cannot be reached and no earlier download is kept"
            if away
            else " ".join(str(error).split())[:200]
        )
        raise HubError(f"{what}: {reason}; {instead}") from error


def _answers() -> bool:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # whatever a proxy, a resolver or a socket may raise
        return False
    return True
