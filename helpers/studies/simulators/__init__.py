"""Machines simulated by rules that stand on a page: exact counts, no noise.

``simulate_caches`` counts what an address stream does to a hierarchy of caches,
``simulate_latency`` gives such a machine's latency by working set; ``count_traffic`` runs a kernel
of the reader's, thread by thread, and counts what it reads and writes; ``systolic`` moves operands
through an array, cycle by cycle. Lessons 01, 02 and 14.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
