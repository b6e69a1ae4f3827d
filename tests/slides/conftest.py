"""The sample lesson's deck."""

from __future__ import annotations

from pathlib import Path

import pytest
from slide_samples import sample_notebook

from slides import build


@pytest.fixture(scope="session")
def sample_html() -> str:
    return build.render(sample_notebook(), name="98_sample")


@pytest.fixture(scope="session")
def sample_deck(sample_html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deck") / "98_sample.html"
    path.write_text(sample_html, encoding="utf-8")
    return path
