"""The fused bias: why adding a bias cost more than the convolution before it, in bytes, models and
measurements.

Variants of one layer behind :func:`layer`, one-pass kernels of our own (:func:`bias_relu`,
:func:`bias_relu_`, :func:`bias_gradient`, :func:`relu_bias_backward`, :func:`bias_relu_pool`), the
bytes of each (:func:`traffic`), the time that a machine's limits give them (:func:`model_time`),
and a net like the story's (:class:`Convnet`). Lesson 18.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
