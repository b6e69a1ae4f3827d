from ._models import (
    Attention as Attention,
    LanguageModel as LanguageModel,
    MixedAdam as MixedAdam,
    add_lora as add_lora,
)
from .figures import (
    draw_alive as draw_alive,
    draw_per_pair as draw_per_pair,
    explore_memory as explore_memory,
)
