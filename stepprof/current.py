"""The one cell that holds the current session and recorder: what ``region`` and ``profile_step`` read.

The cell is one object that is never replaced. Its ``recorder`` goes from None to a recorder once per session, never per window:
code under torch.compile guards on it, and a flag that flipped with each recorded step would recompile the model twice per step.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stepprof.window import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepprof.session import Session
    from stepprof.spans import Recorder

__all__ = ["WAKE_AT", "Scope", "cell", "is_compiling", "scope"]

WAKE_AT = 32_768
"""The writer of spans is woken before its time when so many of them wait."""

if TYPE_CHECKING:
    Scope = tuple[int | None, str | None, Mapping[str, object] | None]
else:
    Scope = tuple
"""(step, role, bound attributes): a plain tuple, since one is made at every window, selected or not."""


class Cell:
    """Holds what is current in this process. ``scope`` is the last window entered, for threads that inherit no context."""

    __slots__ = ("__weakref__", "recorder", "scope", "session", "state")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.recorder: Recorder | None = None
        self.scope: Scope | None = None
        self.state = State()

    def __reduce__(self) -> str:
        # A decorated function that is pickled by value (Ray) refers to the cell of the process it arrives in.
        return "cell"

    def clear(self) -> None:
        """No session: what a forked child and a finished run see."""
        self.session = None
        self.recorder = None
        self.scope = None


cell = Cell()

scope: ContextVar[Scope | None] = ContextVar("stepprof_scope", default=None)
"""The window and the bound attributes of this task or thread."""


def is_compiling() -> bool:
    """Whether Dynamo is tracing this call. It constant-folds to True there, without stepprof ever importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
