"""Figures of a test are closed after it: twenty open ones warn, and warnings are for readers."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    yield
    plt.close("all")
