"""Models on the Hugging Face hub: how they are named, and how their files are fetched."""

from pathlib import Path

from gmmseg.hub_access import PATIENCE, HubError, fetching, offline

__all__ = ["PATIENCE", "PREFIX", "WEIGHTS_INSTEAD", "HubError", "download", "fetching", "offline"]

PREFIX = "hf:"
"""How a name on the hub begins, so that a mistyped folder is never looked up there."""

WEIGHTS_INSTEAD = (
    "give a file of weights (model.weights=FILE), or none to start from random ones (model.weights=null)"
)
"""What to do where the weights of a backbone cannot be fetched."""


def download(name: str, files: list[str]) -> Path:
    """The folder with ``files`` of the repository ``name`` (owner/name), as far as it has them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise ValueError(
            f"{PREFIX}{name}: no name on the hub can look like this; write {PREFIX}OWNER/NAME"
        ) from None
    with fetching(f"{PREFIX}{name}", f"check the name, or download its {files[0]} and weights into a folder"):
        return Path(snapshot_download(name, allow_patterns=files))
