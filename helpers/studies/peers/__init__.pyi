from ._counting import PeerTable as PeerTable, count_with_peers as count_with_peers
