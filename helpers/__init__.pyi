from . import (
    checks as checks,
    console as console,
    data as data,
    doctor as doctor,
    exercises as exercises,
    hardware as hardware,
    isolation as isolation,
    memory as memory,
    models as models,
    native as native,
    operations as operations,
    parallel as parallel,
    plotting as plotting,
    profiling as profiling,
    ranks as ranks,
    recorded as recorded,
    results as results,
    roofline as roofline,
    storage as storage,
    studies as studies,
    timing as timing,
    training as training,
    trees as trees,
    units as units,
    widgets as widgets,
)
from .data import make_MNIST_loader as make_MNIST_loader
from .hardware import machine_card as machine_card, probe as probe
from .isolation import run_limited as run_limited
from .memory import (
    estimate_peak_memory as estimate_peak_memory,
    fits as fits,
    max_batch_size as max_batch_size,
    measure_peak_memory as measure_peak_memory,
    profile_layer_mem as profile_layer_mem,
)
from .models import AlexNet as AlexNet, BasicFCModel as BasicFCModel, LeNet as LeNet
from .operations import count_ops as count_ops, profile_ops as profile_ops
from .profiling import (
    estimate_step_time as estimate_step_time,
    kernel_table as kernel_table,
    profile_time as profile_time,
)
from .ranks import Ranks as Ranks
from .timing import compare as compare, measure as measure, steady_allocator as steady_allocator
from .training import gpu_train as gpu_train, train as train
from .widgets import (
    interactive_figure as interactive_figure,
    predict as predict,
    progress as progress,
)

__version__: str
