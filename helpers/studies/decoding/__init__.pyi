from ._counting import (
    CONFIGS as CONFIGS,
    Config as Config,
    StepCount as StepCount,
    config_of as config_of,
    count_step as count_step,
    read_bytes as read_bytes,
    stored_bytes as stored_bytes,
)
from ._generating import (
    Draft as Draft,
    Generated as Generated,
    NGram as NGram,
    generate as generate,
    speculate as speculate,
    verify as verify,
)
from ._published import (
    GPT_FAST as GPT_FAST,
    GPT_FAST_SOURCE as GPT_FAST_SOURCE,
    PAGED_ATTENTION as PAGED_ATTENTION,
    PAGED_ATTENTION_SOURCE as PAGED_ATTENTION_SOURCE,
    CacheUse as CacheUse,
    DecodingRate as DecodingRate,
)
from ._serving import (
    BatchSchedule as BatchSchedule,
    Pages as Pages,
    count_pages as count_pages,
    schedule as schedule,
)
from .figures import (
    cache_frames as cache_frames,
    draw_acceptance as draw_acceptance,
    draw_batches as draw_batches,
    draw_rows as draw_rows,
    explore_step as explore_step,
)
