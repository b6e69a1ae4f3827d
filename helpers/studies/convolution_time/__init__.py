"""The time of a convolution on one thread, from its shape alone, by each of eight algorithms.

``network_shapes`` and ``random_shapes`` say what is computed, ``ALGORITHMS`` compute it,
``collect`` times them. ``count_terms`` counts what an algorithm does, ``predict_times`` fits a cost
to each count and predicts networks that were kept out, ``errors`` judges; ``fit`` has learned
models beside. ``count_waves`` is a GPU's part of the story, and figures are drawn by
``figures.py``. The story is SEER's (PACT 2021), which does this for cuDNN.

A name is imported from its module when it is first used. Lesson 20.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
