"""Find out that the ``with`` block of a window was left without its exit.

An interrupt at the first instruction of ``__exit__`` does that: none of its code has run, and Python does not call it again.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from opcode import opmap
from types import FrameType

_WITH = {opmap[name] for name in ("BEFORE_WITH", "SETUP_WITH") if name in opmap}
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(eq=False, slots=True)
class WithBlock:
    """A ``with`` statement that has entered a window."""

    frame: FrameType
    at: int
    """Its instruction."""

    @classmethod
    def entered_by(cls, frame: FrameType) -> WithBlock | None:
        """Return the statement that this frame executes; None: it has called the enter in another way."""
        at, code = frame.f_lasti, frame.f_code.co_code
        return cls(frame, at) if 0 <= at < len(code) and code[at] in _WITH else None

    def was_left(self) -> bool:
        """Return whether the block is over. Call it in the thread and the task that entered it.

        Its function has ended, or enters the statement anew. A generator may be suspended in it.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame is self.frame:
                return frame.f_lasti == self.at
            frame = frame.f_back
        return not self.frame.f_code.co_flags & _SUSPENDED
