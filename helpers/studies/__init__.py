"""A room for each subject that one or two lessons need, with its drawings; what stands here may
move at any time.

No module of the library imports a study.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
