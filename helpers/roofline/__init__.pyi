from ._modelling import (
    DatasheetRoof as DatasheetRoof,
    LayerPlacement as LayerPlacement,
    Placement as Placement,
    RooflinePoint as RooflinePoint,
    RooflineProfile as RooflineProfile,
    Workload as Workload,
    datasheet_roof as datasheet_roof,
    model as model,
    place as place,
    roofline as roofline,
    workload_of as workload_of,
)
