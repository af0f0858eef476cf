"""The Hugging Face hub: asked only where it is meant, given up within seconds where it does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

PREFIX = "hf:"
"""How a name on the hub begins, so that a mistyped folder is never looked up there."""

WEIGHTS_INSTEAD = (
    "give a file of weights (model.weights=FILE), or none to start from random ones (model.weights=null)"
)
"""What to do where the weights of a backbone cannot be fetched."""

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


def download(name: str, files: list[str]) -> Path:
    """The folder with ``files`` of the repository ``name`` (owner/name), as far as it has them."""
    from huggingface_hub import snapshot_download

    with fetching(f"{PREFIX}{name}", f"check the name, or download its {files[0]} and weights into a folder"):
        return Path(snapshot_download(name, allow_patterns=files))
