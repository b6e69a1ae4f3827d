from ._arrays import DeviceArray as DeviceArray
from ._launching import (
    ArrayCounts as ArrayCounts,
    Launch as Launch,
    Request as Request,
    Thread as Thread,
    launch as launch,
)
from ._occupancy import (
    MULTIPROCESSORS as MULTIPROCESSORS,
    Multiprocessor as Multiprocessor,
    Occupancy as Occupancy,
    occupancy as occupancy,
)
from ._requests import bank_passes as bank_passes, sectors as sectors
