from ._computing import in_tiles as in_tiles, saved_bytes as saved_bytes
from ._kernel import interpret as interpret, kernel_source as kernel_source
from ._passes import OperatorPasses as OperatorPasses, count_passes as count_passes
from ._published import (
    FLASH_2_SOURCE as FLASH_2_SOURCE,
    FLASH_2_TRAINING as FLASH_2_TRAINING,
    FLASH_SOURCE as FLASH_SOURCE,
    FLASH_TABLE as FLASH_TABLE,
    FlashRow as FlashRow,
    TrainingRate as TrainingRate,
)
from ._streams import (
    ORDERS as ORDERS,
    Moved as Moved,
    count_bytes as count_bytes,
    model_bytes as model_bytes,
    stream as stream,
    tiles_of as tiles_of,
)
from .figures import (
    draw_backward_tile as draw_backward_tile,
    draw_score_tiles as draw_score_tiles,
    draw_units as draw_units,
)
