from .figures import (
    draw_border as draw_border,
    draw_costs as draw_costs,
    draw_packed_tile as draw_packed_tile,
    explore_block as explore_block,
)
