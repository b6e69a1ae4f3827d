from ._bars import draw_bars as draw_bars, draw_three as draw_three
from ._curves import draw_bandwidths as draw_bandwidths, draw_curves as draw_curves, draw_latencies as draw_latencies
from ._gantt import Span as Span, gantt as gantt
from ._hierarchy import draw_hierarchy as draw_hierarchy, draw_inversion as draw_inversion, draw_links as draw_links
from ._history import (
    Doubling as Doubling,
    doubling_line as doubling_line,
    draw_energy as draw_energy,
    draw_growth as draw_growth,
    draw_trends as draw_trends,
)
from ._images import draw_images as draw_images
from ._layers import (
    draw_epoch_times as draw_epoch_times,
    draw_layer_memory as draw_layer_memory,
    draw_layers as draw_layers,
    draw_memory as draw_memory,
    draw_operations as draw_operations,
    draw_shares as draw_shares,
    draw_working_sets as draw_working_sets,
)
from ._parallel import (
    draw_crossover as draw_crossover,
    draw_limits as draw_limits,
    draw_losses as draw_losses,
    draw_speedup as draw_speedup,
    draw_split as draw_split,
    draw_stale as draw_stale,
)
from ._processors import (
    MEMORY_SPACES as MEMORY_SPACES,
    SCHEMATIC_DIES as SCHEMATIC_DIES,
    Die as Die,
    MemorySpace as MemorySpace,
    draw_dies as draw_dies,
    draw_memory_spaces as draw_memory_spaces,
)
from ._roofline import draw_roofline as draw_roofline, roofline_alt as roofline_alt
from ._style import (
    MEASURED as MEASURED,
    MODELLED as MODELLED,
    PREDICTED as PREDICTED,
    figure as figure,
    png as png,
    show as show,
    unit_axis as unit_axis,
)
