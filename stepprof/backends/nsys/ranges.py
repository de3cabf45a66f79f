"""Mark windows and regions as NVTX ranges, in our own domain ``stepprof``.

A region of a plain function is pushed on its thread's stack (in our domain, so that no other ranges
interfere) and popped by the same thread. Coroutines, generators and windows may be suspended or end
on another thread. They use start/end ranges, which any thread may end, in any order. Both kinds
have the role as their category, and a fixed colour for each role.

NVTX looks for a tool once, at the first call in the process, and `nvtx.get_domain` keeps the answer
for good. So nothing of NVTX is called before a window is near, and without a tool each window asks
again.
"""

from __future__ import annotations

import threading
import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stepprof.formatting import install
from stepprof.instrument.context import cell
from stepprof.instrument.scope import current_scope, newest
from stepprof.run.model import WHOLE_STEP, Window

DOMAIN = "stepprof"
MAX_NAMES = 4096
"""The number of names that are registered with the tool, which never frees one. Further names share a range called `BEYOND`."""
BEYOND = f"(more than {MAX_NAMES} names)"

_COLOURS = (
    *(0x4E79A7, 0xF28E2B, 0x59A14F, 0xE15759, 0xB07AA1),
    *(0x76B7B2, 0xEDC948, 0xFF9DA7, 0x9C755F, 0x2F6F4F),
)
_WHOLE = 0x7F7F7F


def colour(role: str | None) -> int:
    """The colour of a role as ARGB, the same in every process and run; the whole step is grey.

    >>> hex(colour("actor")) == hex(colour("actor")), hex(colour(None))
    (True, '0xff7f7f7f')
    """
    return 0xFF000000 | (_WHOLE if role is None else _COLOURS[zlib.crc32(role.encode()) % len(_COLOURS)])


class NvtxRanges:
    """The NVTX ranges of this process."""

    def __init__(self) -> None:
        self._nvtx: Any = None
        self._domain: Any = None
        self._attributes: dict[tuple[str | None, str], Any] = {}

    def missing(self) -> str | None:
        """Return why nothing can be marked, with any tool; or None. Imports nothing."""
        if self._nvtx is not None and not hasattr(self._nvtx, "Domain"):
            return f"this nvtx is too old: {install('nsys')}"
        return None if find_spec("nvtx") else f"nvtx is not installed: {install('nsys')}"

    def look(self) -> bool:
        """Return whether a tool is attached by now."""
        if self._nvtx is None and find_spec("nvtx"):
            self._nvtx = import_module("nvtx")
        if self._domain is None and self.missing() is None:
            domain = self._nvtx.Domain(DOMAIN)
            self._domain = None if type(domain).__name__ == "DummyDomain" else domain
        return self._domain is not None

    def push(self, name: str) -> _Pushed | None:
        """Return a range on the stack of the thread that enters it; the same thread must leave it."""
        if self._domain is None:
            return None
        role = _role()
        made = _Pushed()
        made._domain = self._domain
        made._attributes = self._attributes.get((role, name)) or self._register(role, name)
        return made

    def span(self, name: str) -> _Spanned | None:
        """Return a range that any thread may leave, at any time."""
        if self._domain is None:
            return None
        role = _role()
        return _Spanned(self._domain, self._attributes.get((role, name)) or self._register(role, name))

    def window(self, window: Window) -> _Spanned | None:
        """Return the range of a window; its payload is the step."""
        if self._domain is None:
            return None
        again = f" ({window.occurrence})" if window.occurrence > 1 else ""
        attributes = self._domain.get_event_attributes(
            message=f"step {window.step} {window.name}{again}",
            color=colour(window.role),
            category=window.name,
            payload=window.step,
        )
        return _Spanned(self._domain, attributes)

    def _register(self, role: str | None, name: str) -> Any:
        if len(self._attributes) >= MAX_NAMES:
            name = BEYOND
        if (role, name) not in self._attributes:
            self._attributes[role, name] = self._domain.get_event_attributes(
                message=name, color=colour(role), category=role or WHOLE_STEP
            )
        return self._attributes[role, name]


def may_leave(mark: object) -> bool:
    """Return whether the calling thread can end this range."""
    return not isinstance(mark, _Pushed) or mark.thread == threading.get_ident()


def _role() -> str | None:
    """Return the role of the current scope: `Recorder.where`, inlined for the usual case."""
    where = current_scope()
    if where is None:
        where = newest.window
    elif not where._start:
        recorder = cell.recorder
        where = None if recorder is None else recorder.where()
    return None if where is None else where.role


class _Pushed:
    """A range on its thread's stack. `NvtxRanges.push` sets the attributes: an __init__ would be one more call for each region."""

    __slots__ = ("_attributes", "_domain", "thread")

    _attributes: Any
    _domain: Any

    def __enter__(self) -> _Pushed:
        self.thread = threading.get_ident()
        self._domain.push_range(self._attributes)
        return self

    def __exit__(self, *error: object) -> None:
        self._domain.pop_range()


class _Spanned:
    """A range of the process."""

    __slots__ = ("_attributes", "_domain", "_number")

    def __init__(self, domain: Any, attributes: Any) -> None:
        self._domain = domain
        self._attributes = attributes

    def __enter__(self) -> _Spanned:
        self._number = self._domain.start_range(self._attributes)
        return self

    def __exit__(self, *error: object) -> None:
        self._domain.end_range(self._number)
