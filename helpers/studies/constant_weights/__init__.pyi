from ._counting import (
    CppCensus as CppCensus,
    PlacementCount as PlacementCount,
    PlacementCounts as PlacementCounts,
    WeightCensus as WeightCensus,
    census as census,
    recorded_counts as recorded_counts,
)
from ._cpp_sources import CPP_PLACEMENTS as CPP_PLACEMENTS
from ._cuda_sources import CUDA_PLACEMENTS as CUDA_PLACEMENTS
from ._cuda_timing import (
    CudaTime as CudaTime,
    CudaTimes as CudaTimes,
    measure_cuda as measure_cuda,
    measure_growth as measure_growth,
)
from ._files import (
    Serving as Serving,
    Specialised as Specialised,
    best_placement as best_placement,
    layer_format as layer_format,
    load as load,
    save as save,
)
from ._layer_sources import (
    REFERENCES as REFERENCES,
    layer_source as layer_source,
    layer_weights as layer_weights,
    reference_source as reference_source,
)
from ._listings import (
    count_instructions as count_instructions,
    instruction_with as instruction_with,
    listing as listing,
    missing_gpu_tools as missing_gpu_tools,
    parameters_in as parameters_in,
)
from ._network import (
    ACTIVATIONS as ACTIVATIONS,
    Dense as Dense,
    Network as Network,
    error_bound as error_bound,
    exact_outputs as exact_outputs,
    network_of as network_of,
    pruned as pruned,
    random_network as random_network,
    standard_network as standard_network,
)
from ._peers import PeerTimes as PeerTimes, measure_peers as measure_peers
from ._programs import (
    CppProgram as CppProgram,
    CudaFunction as CudaFunction,
    CudaProgram as CudaProgram,
    build as build,
    cpp_program as cpp_program,
    cuda_function as cuda_function,
    generate as generate,
)
from .figures import (
    WeightWay as WeightWay,
    draw_cycles as draw_cycles,
    draw_instruction as draw_instruction,
    draw_placements as draw_placements,
    draw_ways as draw_ways,
    explore_zeros as explore_zeros,
)
