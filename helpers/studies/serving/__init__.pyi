from ._engine import (
    DecoderStep as DecoderStep,
    MeasuredStep as MeasuredStep,
    measure_step as measure_step,
    ragged_step as ragged_step,
)
from ._loop import (
    Served as Served,
    ServingReport as ServingReport,
    StepTaken as StepTaken,
    promised_rate as promised_rate,
    serve as serve,
)
from ._published import (
    MLPERF_INTERACTIVE as MLPERF_INTERACTIVE,
    MLPERF_SOURCE as MLPERF_SOURCE,
    TENSORRT_LLM as TENSORRT_LLM,
    TENSORRT_LLM_SOURCE as TENSORRT_LLM_SOURCE,
    Promise as Promise,
    ServingRate as ServingRate,
)
from ._requests import (
    Request as Request,
    random_prompts as random_prompts,
    random_requests as random_requests,
)
from ._scheduling import (
    admit as admit,
    admit_static as admit_static,
    good_share as good_share,
    grow as grow,
    plan as plan,
    read_alone as read_alone,
    read_together as read_together,
    release as release,
)
from ._server import (
    Admit as Admit,
    CacheMemory as CacheMemory,
    Grow as Grow,
    Plan as Plan,
    Release as Release,
)
from ._steps import (
    Batch as Batch,
    GpuStep as GpuStep,
    LineStep as LineStep,
    Step as Step,
    fit_step as fit_step,
    gpu_step as gpu_step,
)
from .figures import (
    draw_load as draw_load,
    draw_pages as draw_pages,
    draw_ragged_step as draw_ragged_step,
    draw_slots as draw_slots,
    explore_request as explore_request,
    slot_frames as slot_frames,
)
