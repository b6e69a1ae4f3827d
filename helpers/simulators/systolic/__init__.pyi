from ._array import simulate as simulate
from ._model import (
    DATAFLOWS as DATAFLOWS,
    Accesses as Accesses,
    model_accesses as model_accesses,
    model_cycles as model_cycles,
)
from ._network import (
    Gemm as Gemm,
    LayerOnArray as LayerOnArray,
    NetworkRun as NetworkRun,
    gemm_of as gemm_of,
    simulate_network as simulate_network,
)
from ._run import Frame as Frame, SystolicRun as SystolicRun
