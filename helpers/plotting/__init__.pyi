from ._bars import draw_bars as draw_bars, draw_three as draw_three
from ._curves import draw_bandwidths as draw_bandwidths, draw_curves as draw_curves, draw_latencies as draw_latencies
from ._gantt import Span as Span, gantt as gantt, spans_in_a_row as spans_in_a_row
from ._hierarchy import draw_hierarchy as draw_hierarchy, draw_inversion as draw_inversion, draw_links as draw_links
from ._history import draw_energy as draw_energy, draw_trends as draw_trends
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
    COLOURS as COLOURS,
    MEASURED as MEASURED,
    MODELLED as MODELLED,
    PREDICTED as PREDICTED,
    figure as figure,
    png as png,
    show as show,
    unit_axis as unit_axis,
)
from .drawings._array import draw_array as draw_array
from .drawings._attention import draw_score_tiles as draw_score_tiles
from .drawings._formats import draw_bits as draw_bits, draw_format as draw_format
from .drawings._levels import draw_levels as draw_levels, draw_tile as draw_tile
from .drawings._machine import Kernel as Kernel, draw_kernels as draw_kernels, draw_loader as draw_loader
from .drawings._products import draw_products as draw_products
from .drawings._ranks import (
    draw_all_to_all as draw_all_to_all,
    draw_blocks as draw_blocks,
    draw_column_row as draw_column_row,
    draw_mesh as draw_mesh,
    draw_ring as draw_ring,
)
from .drawings._replicas import draw_couplings as draw_couplings, draw_replicas as draw_replicas
from .drawings._sources import draw_sources as draw_sources
from .drawings._tiles import draw_tiles as draw_tiles
from .drawings._towers import draw_towers as draw_towers
from .drawings._window import draw_window as draw_window
from .explorer._explore import (
    Curves as Curves,
    Menu as Menu,
    Series as Series,
    Slider as Slider,
    StackedBar as StackedBar,
    explore as explore,
)
from .player._play import play as play
