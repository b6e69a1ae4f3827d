"""/srv/course/server/lecturer/nbgrader_config.py: which folder the Formgrader of a lecturer shows."""

from pathlib import Path

c = get_config()  # noqa: F821

c.CourseDirectory.root = str(Path.home() / "class")
