"""The modules in C behind `os` and `signal`. Tools replace functions of these two: Scalene `os._exit` by `sys.exit`, gevent `os.fork`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

system: Any = import_module(os.name)
"""Its functions are those of `os`."""

signals: Any = import_module("_signal")
"""Its functions are those of `signal`; they take and return plain integers."""
