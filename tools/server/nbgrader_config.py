"""/etc/jupyter/nbgrader_config.py: where a class hands out, hands in and gets its pages back.

Read by every user. Written by `python -m tools.server install`, which fills in the words between @
signs.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
if TYPE_CHECKING:
    from traitlets.config import get_config  # when it is read, the name is there

    from tools.server.exchange import Collect, ReleaseFeedback
else:
    from course_exchange import Collect, ReleaseFeedback

c = get_config()

c.CourseDirectory.course_id = "deep_learning_hardware"
c.Exchange.root = "@EXCHANGE@"
c.Exchange.timezone = "UTC"
c.ExchangeFactory.collect = Collect
c.ExchangeFactory.release_feedback = ReleaseFeedback
# The Littlest JupyterHub calls the local user of ada jupyter-ada
c.Collect.owner_prefix = "@PREFIX@"

# A student's code runs in the sandbox of `make grade` alone, and no page shows a hidden test, also
# where somebody clicks Autograde or Generate Feedback in the Formgrader.
c.Autograde.NotebookExporter.preprocessors = ["nothing is run here: run `make grade`"]
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.GetGrades",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
