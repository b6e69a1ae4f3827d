from ._formats import (
    Csr as Csr,
    Packed as Packed,
    model_bytes as model_bytes,
    pack_2_4 as pack_2_4,
    to_csr as to_csr,
)
from ._pruning import (
    PrunedLayer as PrunedLayer,
    Pruning as Pruning,
    prune as prune,
    weight_matrix as weight_matrix,
)
