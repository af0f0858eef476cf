"""The live page of one or several models: models and examples in, a page on this machine out."""

import errno
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gmmseg.data import Scenes, ScenesAnomaly, Streets, StreetsAnomaly
from gmmseg.inference import Predictor
from gmmseg.run.building import validation_data
from gmmseg.run.demo import MODELS
from gmmseg.run.exemplar_index import exemplars_of
from gmmseg.run.runs import open_model, run_config, weights_of
from gmmseg.samples import SegmentationDataset

if TYPE_CHECKING:
    from gmmseg.report.live import Example

LOOPBACK = "127.0.0.1"
NEEDS_GRADIO = "the page needs gradio: pip install 'gmmseg[app]'"
_EXAMPLES = 6
_BUILT_IN = ((Scenes, ScenesAnomaly), (Streets, StreetsAnomaly))
"""What is drawn when asked for: with known things, and with unknown ones."""


@contextmanager
def live_page(
    models: Sequence[str], *, host: str = LOOPBACK, port: int | None = None, demo: Path = Path("demo")
) -> Iterator[str]:
    """The page of ``models`` (as `open_model` takes them) while the block lasts; gives its address.

    Without models, those that `gmmseg demo` has left in the folder ``demo``.
    """
    sources = list(models) or _demo_models(demo)
    try:
        from gmmseg.report.live import LivePage, serving
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NEEDS_GRADIO) from error
    named = _named(sources)
    _refuse_address(host, port)
    predictors = {name: Predictor(open_model(source)) for name, source in named.items()}
    exemplars = {
        name: exemplars_of(source, predictors[name].segmenter) or () for name, source in named.items()
    }
    with serving(LivePage(predictors, _examples(sources[0]), exemplars), host, port) as address:
        yield address


def _refuse_address(host: str, port: int | None) -> None:
    """ValueError where no server of this machine can listen at this address, before models are read."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ValueError(
                f"--port {port}: cannot be had ({error.strerror}); give another one, or none for the first "
                "that is free from 7860 on"
            ) from error
        raise ValueError(f"--host {host}: no address of this machine ({error})") from error


def _demo_models(demo: Path) -> list[str]:
    found = [str(demo / name) for name in MODELS if (demo / name).is_dir()]
    if not found:
        raise FileNotFoundError(
            f"no model: give --model DIR, or train two with `gmmseg demo`, which leaves them in {demo}"
        )
    return found


def _named(sources: Sequence[str]) -> Mapping[str, str]:
    """Sources by a short name of their own: the folder's, or all of it where two have the same."""
    whole = [str(_weights_of(source).resolve()) if Path(source).is_dir() else source for source in sources]
    if len(set(whole)) < len(sources):
        raise ValueError("the same model is given twice: give each --model once")
    short = [Path(source).resolve().name if Path(source).is_dir() else source for source in sources]
    return {
        name if short.count(name) == 1 else str(source): str(source) for name, source in zip(short, sources)
    }


def _weights_of(source: str) -> Path:
    """The folder whose weights a model is made of: a run folder and its best weights are the same model."""
    return next(iter(weights_of(Path(source))), Path(source))


def _examples(source: str) -> "list[Example]":
    """Images to pick: of the data the first model's run was validated on; none where there is no run."""
    from gmmseg.report.live import Example

    config = run_config(Path(source))
    if config is None:
        return []
    drawn = {known.name: (known, strange) for known, strange in _BUILT_IN}.get(config.data.name)
    if drawn is not None:
        half = _EXAMPLES // 2
        known, strange = drawn[0]("test", length=half), drawn[1](length=_EXAMPLES - half)
        parts: list[tuple[SegmentationDataset, str]] = [(strange, "unknown things"), (known, "known things")]
        return [
            Example(dataset[index].image, what) for dataset, what in parts for index in range(len(dataset))
        ]
    try:
        dataset = validation_data(config.data)
    except (OSError, ValueError):  # the data of the run have moved: people bring their own images
        return []
    if dataset is None:
        return []
    step = max(1, len(dataset) // _EXAMPLES)
    chosen = [dataset[index] for index in range(0, len(dataset), step)[:_EXAMPLES]]
    return [Example(sample.image, Path(sample.name).name) for sample in chosen]
