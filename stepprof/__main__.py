"""`python -m stepprof …`, where the script is not on the path."""

from __future__ import annotations

import sys

from stepprof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
