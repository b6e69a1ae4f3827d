"""Operations of a model: MACs, FLOPs and bytes by layer and by operator; forward, backward and
optimizer.

Lesson 11.
"""

from helpers import _faces as faces

_MOVED = {
    "PeerTable": "helpers.studies.peers:PeerTable",
    "count_with_peers": "helpers.studies.peers:count_with_peers",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
