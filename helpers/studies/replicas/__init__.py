"""A hundred replicas: one fit, repeated with other data and other first weights, as one program
that trains them all.

:func:`make_problem` draws a fit, :func:`train` trains its replicas in one of :data:`WAYS`, from one
after another to a stack, with the same losses in all; :func:`cheapest_contraction` counts. Lesson
19.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
