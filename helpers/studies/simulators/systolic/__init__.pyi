from ._array import simulate as simulate
from ._curves import draw_working as draw_working, explore_width as explore_width
from ._model import (
    DATAFLOWS as DATAFLOWS,
    Accesses as Accesses,
    model_accesses as model_accesses,
    model_cycles as model_cycles,
    useful_share as useful_share,
    working_elements as working_elements,
)
from ._network import (
    Gemm as Gemm,
    LayerOnArray as LayerOnArray,
    NetworkRun as NetworkRun,
    gemm_of as gemm_of,
    simulate_network as simulate_network,
)
from ._run import Frame as Frame, SystolicRun as SystolicRun
from ._tpu import (
    TpuApplication as TpuApplication,
    TpuApplications as TpuApplications,
    tpu_applications as tpu_applications,
)
from .figures import draw_array as draw_array
