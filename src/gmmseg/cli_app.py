"""The command `app`: a page in the browser to try models on."""

import signal
import threading
from typing import Annotated

import typer

from gmmseg.terminal import note, say


def app(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Run folder, folder of weights, or hf:owner/name; several are shown side by side. "
            "Default: the models that `gmmseg demo` left in demo/.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the page. Default: the first free one from 7860 on."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback let other machines in.")
    ] = "127.0.0.1",
) -> None:
    """Open a page to try models on: drop an image, move the threshold, click a pixel, save the results.

    Needs gradio, the extra called app. Nothing leaves this machine.
    """
    from gmmseg.run.app import LOOPBACK, live_page

    signal.signal(signal.SIGTERM, _end)  # while models are read: what is there already is removed
    with live_page(model or [], host=host, port=port) as address:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # both end the page in order: its files are removed
            signal.signal(number, lambda *_: stop.set())
        if host != LOOPBACK:
            note("everybody who reaches this address can use the models; there is no password")
        say(f"page: {address} (Ctrl-C ends it)")
        while not stop.wait(1):
            pass


def _end(*_: object) -> None:
    raise SystemExit(1)
