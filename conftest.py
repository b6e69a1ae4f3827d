"""Every test and every notebook under test runs in the environment in which the lessons were built."""

import os
import tempfile

from course.authoring.environment import headless

os.environ.update(headless(cache_folder=tempfile.mkdtemp(prefix="helpers-test-cache-")))
