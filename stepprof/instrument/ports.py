"""What `profile_step` needs of the session that records: the session, an open window, an early start, the engines of a window.

`stepprof.recording` and `stepprof.remote` implement these protocols. Nothing that the training loop calls imports them, not even
for types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stepprof.instrument.span_recorder import Recorder


class WindowEngines(Protocol):
    """The engines that follow one window."""

    async def stopped(self) -> None:
        """Wait until they have answered to their stops, without blocking the event loop."""


class OpenWindow(Protocol):
    """A selected window between its entry and its exit."""

    awaits_engines: bool
    """Whether a coroutine leaves the window and awaits the engines itself."""

    @property
    def bracket(self) -> WindowEngines | None:
        """Return the engines that follow this window; None if there are none."""

    def begin(self, now_ns: int) -> None:
        """Note that its body begins, on this thread."""

    def end(self, now_ns: int, *, moved: bool = False) -> None:
        """Note that its body has ended; ``moved``: perhaps on another thread than it began."""


class EarlyStart(Protocol):
    """What a coroutine has done before it enters a selected window."""

    def cancel(self, reason: str) -> None:
        """Stop the engines that were started, unless a window has taken them over."""


class StartedWindows(Protocol):
    """The windows that `start` opened and no `stop` has closed."""

    def begin(self, window: Any, role: str | None) -> list[tuple[Any, Any]]:
        """Add a window; return those that it replaces, each with the error to stop it with."""

    def forget(self, window: Any) -> None:
        """Note that a window was stopped."""


class Refusals(Protocol):
    """Misuse of windows: logged, and raised only if the session is strict."""

    def refuse(self, what: str, reason: str) -> None:
        """Report an illegal call."""

    def refuse_once(self, reason: str, what: str = ...) -> None:
        """Report a mistake once."""

    def refuse_window(self, step: object, role: object, *, already_open: bool) -> None:
        """Report a window that cannot be entered."""

    def step_number(self, step: object, last: int | None, what: str = ...) -> int | None:
        """Return a step as a plain integer, or None if it is none; `what` formats it for the log."""

    @property
    def started(self) -> StartedWindows:
        """Return the windows that `start` opened."""


OpenT = TypeVar("OpenT", bound=OpenWindow)
EarlyT = TypeVar("EarlyT", bound=EarlyStart)


class Session(Protocol[OpenT, EarlyT]):
    """The session of this process, as `profile_step`, `tick` and `trigger` see it."""

    last_step: int | None
    calm: bool
    """Whether nothing is armed or recorded, so that an unselected window has nothing to check."""

    @property
    def quiet(self) -> Mapping[str | None, tuple[float, float]]:
        """Return, for each role, a range of steps of which none is selected."""

    @property
    def path(self) -> Path | None:
        """Return the run directory."""

    @property
    def recorder(self) -> Recorder:
        """Return the recorder of spans."""

    @property
    def refusals(self) -> Refusals:
        """Return the object that reports misuse."""

    def is_quiet(self, step: object, role: object) -> bool:
        """Return whether a window certainly has nothing to wait for."""

    async def prepare_enter(self, step: object, role: object, version: int | str | None) -> EarlyT | None:
        """Do the waiting of a coroutine before it enters a selected window."""

    def enter(
        self, step: int, role: str | None, version: int | str | None, early: EarlyT | None
    ) -> OpenT | None:
        """Enter a window that may be selected; return it if it is."""

    def left(self) -> None:
        """Note that a window has ended, whether it was selected or not.

        It is not called for windows that `is_quiet` or `quiet` excluded.
        """

    def exit(self, ticket: OpenT, error: BaseException | None) -> None:
        """Exit a selected window."""

    def abandon(self, ticket: OpenT, interrupt: BaseException) -> None:
        """End a selected window whose entry or exit was interrupted."""

    def approach(self, step: int, role: str | None) -> None:
        """Prepare for a step if it is selected, at the end of the step before it."""

    def tick(self) -> None:
        """Apply caps and requests that only this thread can apply."""
