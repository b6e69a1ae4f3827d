"""Serving: requests that arrive at random, a scheduler that chooses the tokens of each step, and
what it can promise.

:func:`serve` is the server's loop. Its step is a real one of the course's decoder
(:class:`DecoderStep`), a line through measured steps (:func:`fit_step`) or a GPU's by bytes and
arithmetic (:func:`gpu_step`); with a modelled step the loop is a simulation. :data:`TENSORRT_LLM`
has published rates. Lesson 23.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
