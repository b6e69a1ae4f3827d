"""The memory of a training step: a Llama-like model, the recipes that train it, the profiles of
other models, and their figures.

Lesson 11.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
