"""The sample lesson's deck, and one Chromium for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slide_samples import chromium_executable, sample_notebook

from slides import browser, build

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def sample_html() -> str:
    return build.render(sample_notebook(), name="98_sample")


@pytest.fixture(scope="session")
def sample_deck(sample_html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deck") / "98_sample.html"
    path.write_text(sample_html, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browser.running(chromium_executable()) as started:
        yield started
