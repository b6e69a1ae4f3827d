"""The one place that starts Chromium: offline, headless, with an empty profile that is gone
afterwards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

WIDTH_PX, HEIGHT_PX = 1280, 720
PRINT_QUERY = {"print-pdf": "yes"}

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_READY_MS = 30_000


class BrowserError(RuntimeError):
    """No browser to print or check a deck with, or a deck that does not start in it."""


def find_chromium() -> str:
    """Return the path of the first Chromium or Chrome on the PATH.

    Raises BrowserError with the remedy.
    """
    chromium = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if chromium is None:
        raise BrowserError(
            "no Chromium found: install it (Debian: `apt-get install chromium`) and run this again"
        )
    return chromium


@dataclass(frozen=True)
class OpenDeck:
    """A deck in a browser: its page, every address it has asked for, and every complaint of the
    browser so far.
    """

    page: Page
    requested: list[str]
    complaints: list[str]


@contextmanager
def run_chromium(executable: str | None = None) -> Iterator[Browser]:
    """Yield a headless Chromium and end it; ``executable`` is by default what :func:`find_chromium`
    gives.

    Raises BrowserError when playwright is not installed or Chromium does not start.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        remedy = "run `uv pip install --group teach`"
        raise BrowserError(
            f"playwright, which drives Chromium, is not installed; {remedy}"
        ) from None
    # Chromium's sandbox does not start for root, as in a container.
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    arguments = [*_QUIET, *(["--no-sandbox"] if as_root else [])]
    path = executable or find_chromium()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
        except Error as error:
            raise BrowserError(f"{path} does not start: {error.message.splitlines()[0]}") from error
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_deck(
    browser: Browser,
    deck: Path,
    *,
    dark: bool = False,
    query: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[OpenDeck]:
    """Yield the deck at 1280 by 720 pixels, offline, once its maths is set and its slides are laid
    out.

    ``dark`` is what the system prefers; ``query`` goes behind the address, such as
    ``{"theme": "dark"}``. Raises BrowserError when the deck does not get ready.
    """
    context = browser.new_context(
        viewport={"width": WIDTH_PX, "height": HEIGHT_PX},
        color_scheme="dark" if dark else "light",
        offline=True,
    )
    try:
        opened_deck = _listen(context.new_page())
        _load(opened_deck, deck, query)
        yield opened_deck
    finally:
        context.close()


def _listen(page: Page) -> OpenDeck:
    requested, complaints = [], []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"console {message.type}: {message.text}")

    page.on("request", lambda request: requested.append(request.url))
    page.on(
        "requestfailed", lambda request: complaints.append(f"request failed: {request.url[:100]}")
    )
    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(f"error in the page: {error}"))
    return OpenDeck(page=page, requested=requested, complaints=complaints)


def _load(opened_deck: OpenDeck, deck: Path, query: Mapping[str, str]) -> None:
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    laid_out = "html[data-ready=yes]" + (" .pdf-page" if PRINT_QUERY.keys() <= query.keys() else "")
    try:
        opened_deck.page.goto(deck.resolve().as_uri() + (f"?{urlencode(query)}" if query else ""))
        opened_deck.page.wait_for_selector(laid_out, state="attached", timeout=_READY_MS)
    except PlaywrightTimeoutError:
        complaints = "; ".join(opened_deck.complaints) or "the browser does not say why"
        raise BrowserError(f"{deck.name} did not start in Chromium: {complaints}") from None
