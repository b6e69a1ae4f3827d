from ._modelling import (
    DatasheetRoof as DatasheetRoof,
    LayerPlacement as LayerPlacement,
    RooflinePoint as RooflinePoint,
    RooflineProfile as RooflineProfile,
    Workload as Workload,
    datasheet_roof as datasheet_roof,
    model as model,
    roofline as roofline,
    workload_of as workload_of,
)
