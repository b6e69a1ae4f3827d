"""Numbers of few bits: what their codes mean, how values are rounded to them, and a product that
saturates.

``FORMATS`` has the floating-point and integer formats of deep learning; ``encode_blocks`` gives 32
values a scale in common (OCP MX); ``quantise`` maps a tensor to whole numbers and a scale;
``saturating_product`` is the product of bytes by a processor whose instruction adds pairs in 16
bits. Lesson 16.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
