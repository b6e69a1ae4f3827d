from ._published import RING_RATES as RING_RATES, RING_SOURCE as RING_SOURCE, RingRate as RingRate
from ._tiles import count_tiles as count_tiles
from .figures import explore_ring as explore_ring
