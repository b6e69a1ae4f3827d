"""The program that runs notebooks in a process with a setting's limits, and writes a line of
failures for each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

from tools.authoring import strict, warm

CELL_TIMEOUT_S = 600  # fewer instructions, and one core, take longer than a test allows


def main() -> None:
    """Read on standard input what to run, and write to the file of the first argument."""
    asked = json.load(sys.stdin)
    with warm.kernels() as kernels, Path(sys.argv[1]).open("w", encoding="utf-8") as told:
        for notebook in map(Path, asked["notebooks"]):
            found = strict.failures(
                notebook,
                Path(asked["root"]),
                sanitize=Path(asked["sanitize"]),
                kernels=kernels,
                variables=asked["variables"],
                cell_timeout_s=CELL_TIMEOUT_S,
            )
            told.write(json.dumps([astuple(failure) for failure in found]) + "\n")
            told.flush()
            print(f"{notebook.name}: {len(found)} changed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
