"""Draws the library's results; measures nothing.

One style for all, and no figure without an alt text.
"""

from helpers import _faces as faces

_MOVED = {
    "draw_epoch_times": "helpers.studies.beyond_memory:draw_epoch_times",
    "draw_memory": "helpers.studies.working_set:draw_memory",
    "draw_working_sets": "helpers.studies.working_set:draw_working_sets",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
