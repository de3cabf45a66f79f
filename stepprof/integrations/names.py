"""Names of a framework, as ``module:dotted.name``."""

from __future__ import annotations

import importlib
from typing import Any


def look_up(need: str) -> Any:
    """Return the object that ``module:dotted.name`` names.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such name.
    """
    module, _, name = need.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found
