"""The generated programs beside PyTorch and ONNX Runtime, one run, one thread: ``make bench NAME=constant_weights``.

It prints every way's time, the figures to reach as ratios, and what misses. ONNX Runtime is in the group "peers";
without it, or where torch.compile does not work, a line says so. The lesson's table is recorded by
``python -m helpers.recorded 11``.
"""

from __future__ import annotations

import argparse
import os

from helpers.studies.constant_weights.peers import measure_peers


def main() -> None:
    """Print the measurement, the load of the machine, and one line that says what misses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=6.0, help="seconds a comparison (default: 6)")
    measured = measure_peers(budget_s=parser.parse_args().budget)
    print(measured)
    if hasattr(os, "getloadavg"):
        print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    missed = [f"{target.figure} ({target.measured_ratio:.2f}x of {target.needed_ratio:.2f}x)"
              for target in measured.targets if not target.reached]  # fmt: skip
    print(f"misses: {', '.join(missed) or 'none of the figures that could be measured'}")


if __name__ == "__main__":
    main()
