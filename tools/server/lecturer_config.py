"""/srv/course/server/lecturer/nbgrader_config.py: which folder the Formgrader of a lecturer
shows.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traitlets.config import get_config  # when it is read, the name is there

c = get_config()

c.CourseDirectory.root = str(Path.home() / "class")
