from ._modelling import (
    DatasheetRoof as DatasheetRoof,
    RooflinePoint as RooflinePoint,
    Workload as Workload,
    datasheet_roof as datasheet_roof,
    model as model,
)
from ._placing import (
    LayerPlacement as LayerPlacement,
    Placement as Placement,
    RooflineProfile as RooflineProfile,
    place as place,
    roofline as roofline,
    workload_of as workload_of,
)
