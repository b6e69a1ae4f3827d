from ._measuring import Wires as Wires
from ._published import (
    BUS_BANDWIDTHS as BUS_BANDWIDTHS,
    BUS_BANDWIDTHS_SOURCE as BUS_BANDWIDTHS_SOURCE,
    GPT3_DAYS as GPT3_DAYS,
    GPT3_DAYS_SOURCE as GPT3_DAYS_SOURCE,
    MODELS as MODELS,
    MODELS_SOURCE as MODELS_SOURCE,
    PublishedLayout as PublishedLayout,
    TrainingDays as TrainingDays,
)
from .figures import (
    draw_fastest as draw_fastest,
    draw_layouts as draw_layouts,
    draw_names as draw_names,
    explore_layouts as explore_layouts,
)
