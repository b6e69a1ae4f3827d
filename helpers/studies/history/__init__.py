"""How computing grew: training compute of landmark models, processors by year, and the energy of an
operation.

Lessons 01, 02 and 14.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
