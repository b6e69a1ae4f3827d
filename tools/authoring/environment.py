"""The one switch under which lessons are built and tested: on a CPU, alone, with nobody
watching.
"""

from __future__ import annotations

import os

# For a run that compares no time: a measurement ends where a stable one may at the earliest
# (helpers/timing/_runs.py).
EARLY_END = {"HELPERS_EARLY_END": "1"}


def headless(*, cache_folder: str) -> dict[str, str]:
    """Return the environment variables that make a build or a test independent of this machine's
    state.

    CUDA is hidden, one thread computes, no progress bar is drawn, stored predictions are not read,
    IPython's own profile is not loaded, and the library's cache is ``cache_folder``, which the
    caller makes and removes.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HELPERS_HEADLESS": "1",
        "HELPERS_CACHE": cache_folder,
        "IPYTHONDIR": os.path.join(cache_folder, "ipython"),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
