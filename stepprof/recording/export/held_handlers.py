"""Hold back the signal handlers of the job while it forks.

Another thread may receive a signal that the forking thread blocks. Python then runs the handler between two instructions of the
main thread. In a hook of `os.register_at_fork`, what the handler raises would be dropped, and the hook would not release its lock: that of
the log, for example, for which every other thread would wait for ever.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from stepprof.host.system_calls import signals


class HeldHandlers:
    """The handlers of the job, replaced by one that notes the signal. Use it on the main thread alone."""

    def __init__(self) -> None:
        import ctypes  # here: torch has loaded it

        self._sigaction: Any = ctypes.CDLL(None).sigaction
        self._buffer = ctypes.c_byte * 256
        self._held: dict[int, tuple[Callable[[int, FrameType | None], object], Any]] = {}
        self._arrived: list[int] = []

    def _action(self, number: int) -> Any:
        """Return what the system does for a signal. It has flags that Python does not show (`signal.siginterrupt`)."""
        action = self._buffer()
        self._sigaction(number, None, action)
        return action

    def hold(self) -> None:
        """Replace the handlers."""
        for number in signals.valid_signals():
            handler = signals.getsignal(number)
            if callable(handler):
                action = self._action(number)
                self._held[number] = handler, action
                signals.signal(number, self._note)
                if bytes(self._action(number))[:8] != bytes(action)[:8]:
                    self._restore(number)  # a library in C has set another one since

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)

    def _restore(self, number: int) -> None:
        handler, action = self._held[number]
        signals.signal(number, handler)
        self._sigaction(number, action, None)

    def release(self) -> None:
        """Restore the handlers. Raises what one of them raises meanwhile."""
        raised: BaseException | None = None
        while self._held:
            try:
                for number in self._held:
                    self._restore(number)
                break
            except BaseException as error:  # noqa: BLE001 - of a handler that is restored; the others must be too
                raised = error
        if raised is not None:
            raise raised

    def deliver(self) -> None:
        """Run the handlers of the signals that have arrived, also if one of them raises."""
        if self._arrived:
            number = self._arrived.pop(0)
            try:
                self._held[number][0](number, sys._getframe())
            finally:
                self.deliver()


@contextlib.contextmanager
def handlers_held() -> Iterator[None]:
    """Hold the handlers back until the block ends. Then run them for the signals that have arrived."""
    held = HeldHandlers()
    try:
        held.hold()
        yield
    finally:
        try:
            held.release()
        finally:
            held.deliver()
