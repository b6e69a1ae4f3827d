from ._tables import (
    doubling_time as doubling_time,
    energy_cost as energy_cost,
    energy_costs as energy_costs,
    multiplier_exponent as multiplier_exponent,
    processors as processors,
    relative_energy_costs as relative_energy_costs,
    training_compute as training_compute,
)
from .figures import draw_energy as draw_energy, draw_trends as draw_trends
