from ._measuring import (
    CallTimes as CallTimes,
    LayerTimes as LayerTimes,
    measure_calls as measure_calls,
    measure_gpu as measure_gpu,
    packed_product as packed_product,
    reading_programs as reading_programs,
)
from ._published_errors import published_errors as published_errors
from .figures import (
    draw_calls as draw_calls,
    draw_layer as draw_layer,
    explore_roofline as explore_roofline,
)
