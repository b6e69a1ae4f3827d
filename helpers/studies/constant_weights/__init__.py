"""A small network whose weights stand in the program: from the source to the machine instruction,
and back to a file.

``generate`` writes the program, ``build`` compiles it, ``census`` counts what became of the
weights; ``save`` and ``load`` keep networks in files, and ``Specialised`` serves one from a file at
the speed of constants.

A name is imported from its module when it is first used. Lesson 17.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
