from ._models import (
    Attention as Attention,
    LanguageModel as LanguageModel,
    MixedAdam as MixedAdam,
    add_lora as add_lora,
)
from ._profiles import (
    LayerWorkingSet as LayerWorkingSet,
    MemoryProfile as MemoryProfile,
    MemoryShare as MemoryShare,
    WorkingSets as WorkingSets,
    profile_layer_alexnet as profile_layer_alexnet,
    profile_mem as profile_mem,
)
from .figures import (
    draw_alive as draw_alive,
    draw_memory as draw_memory,
    draw_per_pair as draw_per_pair,
    draw_working_sets as draw_working_sets,
    explore_memory as explore_memory,
)
