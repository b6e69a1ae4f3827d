"""Whether the tests run in CI, where nobody reads of a test that did not run."""

import os


def in_ci() -> bool:
    """Return whether ``CI`` is set, to anything but 0 and false."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
