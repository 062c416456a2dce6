"""``python -m pecan_ray.cli``."""

from __future__ import annotations

import sys

from pecan_ray.cli import main

if __name__ == "__main__":
    sys.exit(main())
