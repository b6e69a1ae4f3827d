"""One grammar for what is counted, measured and timed: a model, its inputs, and one step of it.

``inputs`` is a shape (batch first; a tensor of the model's type), a tuple of shapes, a tensor, a
tuple of positional arguments with a tensor among them, or a dict of keyword arguments, or of
shapes; without any it is the shape that the model names itself, ``model.example_shape``. It may be
given as ``shape=`` as well. An argument may be an object of any class: the tensors that it holds
are found at any depth. What cannot be handled raises TypeError or ValueError where the argument is
wrong, and :class:`ModelError` where the model is.

Lesson 11.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
