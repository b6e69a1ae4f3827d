from ._bars import draw_bars as draw_bars, draw_three as draw_three
from ._curves import draw_curves as draw_curves
from ._gantt import Span as Span, gantt as gantt, spans_in_a_row as spans_in_a_row
from ._layers import (
    draw_layer_memory as draw_layer_memory,
    draw_layers as draw_layers,
    draw_operations as draw_operations,
    draw_shares as draw_shares,
)
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
from .explorer._explore import (
    Curves as Curves,
    Menu as Menu,
    Series as Series,
    Slider as Slider,
    StackedBar as StackedBar,
    explore as explore,
)
from .player._play import play as play
