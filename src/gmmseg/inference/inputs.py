"""Which files to predict, what to call what becomes of them, and the images in them."""

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gmmseg.images import IMAGE_SUFFIXES, load_image
from gmmseg.inference.video import VIDEO_SUFFIXES, frames


@dataclass(frozen=True)
class Input:
    """An image or video file, and its ``name``: a relative path with suffix that no other input has.

    ``output`` is what its outputs are called: the name without suffix, or with it where two inputs differ in
    nothing else.
    """

    path: Path
    name: str
    output: str

    @property
    def is_video(self) -> bool:
        return _is_video(self.path.name)


def images_of(item: Input, max_pixels: int, *, every: int = 1) -> Iterator[tuple[str, Tensor]]:
    """The one image of ``item``, or each frame or one in ``every`` of a video: name and pixels (3 h w)."""
    if not item.is_video:
        yield item.name, load_image(item.path, max_pixels=max_pixels)
        return
    for index, frame in frames(item.path, max_pixels=max_pixels, every=every):
        yield f"{item.name}/{index:06d}", load_image(frame)


def find_inputs(paths: Iterable[str | os.PathLike], out_dir: Path | None = None) -> list[Input]:
    """Files as they are given; of folders, all images and videos in them, deep down, without ``out_dir``.

    Names are paths relative to the folder given, prefixed with its name when there are several inputs. A file
    named explicitly is taken whatever its suffix. Links are followed; a folder is looked through once.
    """
    given = [Path(path) for path in paths]
    check_inputs(given, out_dir)
    taken: set[str] = set()
    named = [
        (path, _unique(name, taken))
        for root in given
        for path, name in _files(root, out_dir, prefix=len(given) > 1)
    ]
    outputs = _outputs([name for _, name in named])
    return [Input(path, name, output) for (path, name), output in zip(named, outputs)]


def check_inputs(given: Sequence[Path], out_dir: Path | None = None) -> None:
    """Refuse paths that are not there, and an ``out_dir`` that is one of them; no folder is gone through."""
    for path in given:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        if out_dir is not None and path.is_dir() and _same(path, out_dir):
            raise ValueError(
                f"{out_dir}: predictions would be written among the images; choose another output folder"
            )


def images_in(folder: Path) -> list[Input]:
    """The images in a folder, deep down; FileNotFoundError where there is none."""
    found = [item for item in find_inputs([folder]) if not item.is_video]
    if not found:
        raise FileNotFoundError(f"{folder}: holds no images")
    return found


def _outputs(names: list[str]) -> list[str]:
    """What outputs of inputs with these names are called, each differently.

    Frames of a video have a folder of its name, so no folder of other inputs may be called so.
    """
    stems = [str(Path(name).with_suffix("")) for name in names]
    counts = Counter(stem.casefold() for stem in stems)
    folders = {str(folder).casefold() for name in names for folder in Path(name).parents}
    shared = {stem for stem, count in counts.items() if count > 1}
    taken: set[str] = set()
    return [
        _unique(name if stem.casefold() in (shared | folders if _is_video(name) else shared) else stem, taken)
        for name, stem in zip(names, stems)
    ]


def _is_video(name: str) -> bool:
    return Path(name).suffix.lower() in VIDEO_SUFFIXES


def _same(first: Path, second: Path) -> bool:
    return first.resolve() == second.resolve()


def _files(root: Path, out_dir: Path | None, *, prefix: bool) -> Iterator[tuple[Path, str]]:
    """Files under ``root`` in order, each with its name."""
    if not root.is_dir():
        yield root, root.name
        return
    for folder, names in _folders(root, out_dir):
        for name in names:
            path = folder / name
            if not name.startswith(".") and path.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
                relative = path.relative_to(root)
                yield path, str(Path(root.resolve().name) / relative if prefix else relative)


def _folders(root: Path, out_dir: Path | None) -> Iterator[tuple[Path, list[str]]]:
    """``root`` and the folders in it, deep down, each once, with the names of its files in order.

    Folders that links lead to come last, so that a folder with a place of its own is found there; one
    that was found already, as where a link leads back up, is left out.
    """
    seen = set() if out_dir is None else {out_dir.resolve()}
    starts = deque([root])
    while starts:
        for path, subfolders, names in os.walk(starts.popleft()):
            folder = Path(path)
            if folder.resolve() in seen:
                subfolders.clear()
                continue
            seen.add(folder.resolve())
            subfolders.sort()
            starts.extend(folder / name for name in subfolders if (folder / name).is_symlink())
            yield folder, sorted(names)


def _unique(name: str, taken: set[str]) -> str:
    """``name``, numbered when it is taken (also on file systems that do not tell a from A)."""
    path, number, unique = Path(name), 1, name
    while unique.casefold() in taken:
        number += 1
        unique = str(path.with_name(f"{path.stem}~{number}{path.suffix}"))
    taken.add(unique.casefold())
    return unique
