"""How long a convolution takes on one thread, from its shape alone, by each of eight programs.

``network_shapes`` and ``random_shapes`` say what is computed, ``ALGORITHMS`` are the programs, ``collect`` times them,
``fit`` predicts, ``errors`` judges; ``count_waves`` is a GPU's part of the story. The
story: SEER (PACT 2021), which does this for cuDNN.

A name is imported from its module when it is first used. Lesson 20.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
