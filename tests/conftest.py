"""One Chromium for all tests that look at pages, and what of the tests only CI runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from slides import browser
from tests import long
from tests.ci import in_ci

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with a browser or the site ``ci`` unless they are marked ``in_test``, and so what
    takes long, before pytest looks at the marks.
    """
    for item in items:
        needs = {"chromium", "site"} & {*getattr(item, "fixturenames", ())}
        if needs and item.get_closest_marker("in_test") is None:
            item.add_marker("ci")
    are_whole_files = not hasattr(config, "workerinput") and "::" not in "".join(config.args)
    long.mark(items, long.names(), are_whole_files=are_whole_files)


def chromium_executable() -> str:
    """Return Chromium's path. Without one a test skips on a desk and fails in CI."""
    try:
        return browser.find_chromium()
    except browser.BrowserError as error:
        stop = pytest.fail if in_ci() else pytest.skip
        stop(str(error))


@pytest.fixture(name="chromium_executable")
def chromium_executable_fixture() -> Callable[[], str]:
    """The function above, for the test of it."""
    return chromium_executable


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A running Chromium without a network of its own."""
    with browser.run_chromium(chromium_executable()) as started:
        yield started
