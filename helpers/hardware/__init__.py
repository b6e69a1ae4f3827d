"""The machine under the notebook: as its system describes it (:func:`machine_card`), as measured
(:func:`probe`).

A name is imported from its module when it is first used: the card is read also where PyTorch does
not load.

Lesson 00.
"""

from helpers import _faces as faces

_MOVED = {
    "memory_inversion": "helpers.studies.memory_hierarchy:memory_inversion",
    "published_errors": "helpers.studies.layer_roofline:published_errors",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
