"""`gmmseg data convert-masks`: colour-coded masks become masks of ids."""

from pathlib import Path
from typing import Annotated

import typer

from gmmseg.terminal import Bar, say


def convert_masks(
    masks: Annotated[Path, typer.Argument(help="Folder of colour-coded masks; folders in it are kept.")],
    out: Annotated[Path, typer.Argument(help="Folder for the masks of ids.")],
    colours: Annotated[
        Path | None, typer.Option(help="File with NAME R G B on every line; the first line is id 0.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Colour R,G,B that becomes 255. May be given several times.")
    ] = None,
) -> None:
    """Turn colour-coded masks into masks of ids, as `folder` and `anomaly_folder` need them.

    Without --colours it lists the colours it finds and writes them to OUT/colours.txt for you to name.
    A colour that is not named is an error. Masks that are there already are never replaced; a conversion
    that was stopped is continued by the same command.
    """
    from gmmseg.data import mask_colours

    with Bar("converting") as bar:
        if colours is None:
            found = mask_colours.found_colours(masks, out, bar)
        else:
            ignored = [mask_colours.parse_colour(each) for each in ignore or ()]
            written, there = mask_colours.convert_masks(masks, out, colours, ignore=ignored, progress=bar)
    if colours is not None:
        say(f"{written} masks written to {out}" + (f", {there} were there already" if there else ""))
        return
    template = out / mask_colours.COLOURS_FILE
    mask_colours.write_template(found, template)
    _ask_for_names(found, masks, out, template)
    raise typer.Exit(1)


def _ask_for_names(found: dict[tuple[int, int, int], int], masks: Path, out: Path, template: Path) -> None:
    """Say which colours there are, how many pixels have them, and what to do."""
    total = sum(found.values())
    for (red, green, blue), count in found.items():
        say(f"{red:>3} {green:>3} {blue:>3}  {100 * count / total:6.2f} % of the pixels")
    say(
        f"{len(found)} colours: write the name of a class in the place of each ? of {template}, in the order "
        "of the ids you want,\nand take out the lines of colours to be ignored. Then: "
        f"gmmseg data convert-masks {masks} {out} --colours {template} [--ignore R,G,B]"
    )
