from ._accelerators import (
    SleepingAccelerator as SleepingAccelerator,
    TrainingAccelerator as TrainingAccelerator,
    copied_ahead as copied_ahead,
    copy_ahead as copy_ahead,
    training_step as training_step,
)
from ._checkpoints import (
    Checkpointer as Checkpointer,
    SaveCost as SaveCost,
    StallTable as StallTable,
    daly_interval_s as daly_interval_s,
    expected_run_s as expected_run_s,
    measure_save as measure_save,
    measure_stalls as measure_stalls,
    modelled_stall_s as modelled_stall_s,
    optimal_interval_s as optimal_interval_s,
    simulate_run_s as simulate_run_s,
    snapshot as snapshot,
    state_bytes as state_bytes,
    training_state as training_state,
    young_interval_s as young_interval_s,
)
from ._disks import (
    MEMORY_FILESYSTEMS as MEMORY_FILESYSTEMS,
    DiskTimes as DiskTimes,
    measure_disk as measure_disk,
    read_from_disk_s as read_from_disk_s,
)
from ._fairness import (
    LECTURE_SETUPS as LECTURE_SETUPS,
    FairTable as FairTable,
    Setup as Setup,
    SetupCosts as SetupCosts,
    compare_setups as compare_setups,
    model_setup as model_setup,
    run_setup as run_setup,
    run_sleeping_setup as run_sleeping_setup,
)
from ._forks import (
    MemoryGrowth as MemoryGrowth,
    PathItems as PathItems,
    measure_growth as measure_growth,
)
from ._loading import (
    DecodedImages as DecodedImages,
    FilesOnOneDisk as FilesOnOneDisk,
    FreeItems as FreeItems,
    ItemCost as ItemCost,
    LoaderSettings as LoaderSettings,
    WaitingItems as WaitingItems,
    changed as changed,
    end_workers as end_workers,
    item_cost as item_cost,
    make_loader as make_loader,
    vary as vary,
    workers_end as workers_end,
    write_images as write_images,
)
from ._pipeline import (
    FeedingModel as FeedingModel,
    SimulatedFeeding as SimulatedFeeding,
    model_feeding as model_feeding,
    simulate_feeding as simulate_feeding,
)
from ._played import (
    PlayedBatch as PlayedBatch,
    PlayedCuda as PlayedCuda,
    PlayedEvent as PlayedEvent,
    PlayedStream as PlayedStream,
)
from ._starvation import (
    EpochFeeding as EpochFeeding,
    FeedingRun as FeedingRun,
    FeedingSweep as FeedingSweep,
    feed as feed,
    measure_copying as measure_copying,
    measure_handover as measure_handover,
    sweep_feeding as sweep_feeding,
)
from .figures import (
    draw_loader as draw_loader,
    draw_overlap as draw_overlap,
    explore_loader as explore_loader,
)
