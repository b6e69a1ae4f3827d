from ._arrays import DeviceArray as DeviceArray
from ._launching import (
    ArrayCounts as ArrayCounts,
    Launch as Launch,
    MemoryRequest as MemoryRequest,
    Thread as Thread,
    launch as launch,
)
from ._measuring import (
    MeasuredTranspose as MeasuredTranspose,
    MeasuredTransposes as MeasuredTransposes,
    measure_transposes as measure_transposes,
)
from ._occupancy import (
    MULTIPROCESSORS as MULTIPROCESSORS,
    Multiprocessor as Multiprocessor,
    Occupancy as Occupancy,
    occupancy as occupancy,
)
from ._places import Follower as Follower, ReportedPlace as ReportedPlace
from ._programs import (
    H100_COMPILER as H100_COMPILER,
    H100_RESOURCES as H100_RESOURCES,
    TRANSPOSES_THREADS as TRANSPOSES_THREADS,
    cuda_source as cuda_source,
)
from ._published import (
    PRODUCTS as PRODUCTS,
    PRODUCTS_SOURCE as PRODUCTS_SOURCE,
    TRANSPOSES as TRANSPOSES,
    TRANSPOSES_SOURCE as TRANSPOSES_SOURCE,
    ProductRate as ProductRate,
    TransposeTime as TransposeTime,
)
from ._requests import bank_passes as bank_passes, sectors as sectors
from ._scheduling import Schedule as Schedule, Turn as Turn, run_scheduler as run_scheduler
from .figures import (
    TransposeStep as TransposeStep,
    draw_banks as draw_banks,
    draw_lanes as draw_lanes,
    draw_schedules as draw_schedules,
    draw_sectors as draw_sectors,
    draw_way as draw_way,
    explore_occupancy as explore_occupancy,
)
