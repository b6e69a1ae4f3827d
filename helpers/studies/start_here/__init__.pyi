from .figures import (
    draw_model as draw_model,
    draw_pauses as draw_pauses,
    draw_runs as draw_runs,
    explore_training as explore_training,
)
