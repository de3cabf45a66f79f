"""The entries of one window's engines in the manifest, and the folders of their files.

The process that drives the engines writes all entries of a window into one fragment: a thousand engines are one file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stepprof.config.options.engine import EngineOptions
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineWindow
from stepprof.remote.core.engine_capture import LOST
from stepprof.run.layout import MANIFEST
from stepprof.run.manifest_writer import Fragment, Origin
from stepprof.run.model import WHOLE_STEP, Outcome, Window
from stepprof.run.reasons import ReasonCode
from stepprof.run.schema import EngineEntry

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.config.config import Policy
    from stepprof.remote.base import Clock
    from stepprof.remote.core.engine_target import EngineTarget

SAVE_SECONDS = 0.02
"""How long answers of engines are gathered before they are written."""


class Entries:
    """The entries of one window's engines in its fragment.

    Args:
        post: runs the writing on another thread.
        unsaved: the entries of all windows that are about to be written.
    """

    def __init__(
        self,
        origin: Origin,
        window: Window,
        post: Callable[[Callable[[], object]], None],
        unsaved: set[Entries],
    ) -> None:
        self._origin = origin
        self._window = window
        self._unsaved = unsaved
        self.fragment = Fragment(origin, window, post, engines=True)

    def add(
        self,
        target: EngineTarget | None,
        *,
        status: Outcome = "lost",
        code: ReasonCode | None = ReasonCode.RECORDING,
        error: str | None = LOST,
    ) -> EngineEntry:
        """Add the entry of an engine, written ahead as lost unless its outcome is known. None: the engine is unknown."""
        window = self._window
        entry = EngineEntry(
            role=window.role,
            occurrence=window.occurrence,
            visit=window.visit,
            driver=self._origin.rank,
            status=status,
            pending=status == "lost",
            reason_code=code,
            error=error,
            health="unreachable",
        )
        if target is not None:
            driver = target.driver
            entry.update(
                role=target.role,
                replica=target.replica,
                kind=driver.kind,
                name=driver.name,
                host=driver.host,
                boot_id=target.boot_id,
                health=target.health,
            )
        self.fragment.engines.append(entry)
        return entry

    def write_soon(self, targets: Iterable[EngineTarget] = ()) -> None:
        """Write on another thread, with the current clocks; a window that reached no engine leaves nothing."""
        self.note_clocks(targets)
        if self.fragment.engines:
            self.fragment.save()

    def note_clocks(self, targets: Iterable[EngineTarget]) -> None:
        """Use the current clocks for all further writes."""
        self.fragment.clocks = _clocks(targets) or self.fragment.clocks

    def save_later(self) -> None:
        """Write in a moment: many engines answer at once, and writing delays the handling of the others."""
        if self not in self._unsaved:
            self._unsaved.add(self)
            asyncio.get_running_loop().call_later(SAVE_SECONDS, self.save)

    def save(self) -> None:
        """Write now, if a write is scheduled."""
        if self in self._unsaved:
            self._unsaved.discard(self)
            self.fragment.save()

    def now(self, target: EngineTarget, place: EngineWindow, policy: Policy) -> EngineWindow:
        """Return the window that a driver gets for a place, with everything known so far."""
        window = self._window
        if (
            (place.window is window or place.window == window)
            and place.options is policy.engine
            and place.workers == target.workers
            and place.metadata.get("engine") == target.driver.kind
        ):
            return place
        return replace(
            place,
            window=window,
            options=policy.engine,
            metadata={
                "run_id": self._origin.run.run_id,
                "step": window.step,
                "role": window.role,
                "occurrence": window.occurrence,
                "version": window.version,
                "replica": target.replica,
                "engine": target.driver.kind,
            },
            workers=target.workers,
            trace_dir=target.trace_dir,
            start_seconds=policy.engine_start_timeout_seconds,
            stop_seconds=policy.engine_stop_timeout_seconds,
            npu=policy.npu,
            nsys=policy.nsys,
            owner=self._origin.writer,
        )

    # blocking: runs on a thread

    def places(self, targets: Iterable[EngineTarget]) -> list[EngineWindow]:
        """Make a folder for each engine. Raises OSError."""
        window, run = self._window, self._origin.run
        made = []
        for target in targets:
            if target.is_rank:
                folder, stem = run.path, ""
            else:
                folder, stem = run.engine_folder(window.step, window.role or WHOLE_STEP, target.replica)
            made.append(EngineWindow(window, target.replica, folder, stem, EngineOptions()))
        return made

    def take(self, targets: Iterable[EngineTarget]) -> dict[int, Mapping[str, object]]:
        """Claim the engines that other processes may have attached too. Return those that another
        process drives, and which one.
        """
        window = self._window
        found: dict[int, Mapping[str, object]] = {}
        for target in targets:
            try:
                holder = self._origin.run.take_engine(
                    window.step, window.role or WHOLE_STEP, target.driver.key, window.occurrence
                )
            except ours(OSError) as error:  # then every process drives it, and the engine refuses all but one
                logger.warning("engine.claim_failed", target=target.label, reason=str(error))
                continue
            if holder is not None:
                found[id(target)] = holder
        return found


def remove_folder(window: EngineWindow) -> None:
    """Remove an unused folder if it is empty, and the step's folder if no process has claimed a place in it."""
    if not window.stem:
        return
    step = window.folder
    claimed = (step / MANIFEST).exists()  # then other files may soon be written to the role's folder
    above = window.output.parent
    try:
        window.output.rmdir()
        if not claimed:
            above.rmdir()
            _remove_step(step, above)
    except ours(OSError) as error:
        logger.debug("folder.kept", path=str(window.output), reason=str(error))


def _remove_step(step: Path, above: Path) -> None:
    """Remove a step's folder. If a process has claimed a place in it meanwhile, restore the role's
    folder, into which it may be about to write.
    """
    try:
        step.rmdir()
    except ours(OSError):
        if (step / MANIFEST).exists():
            above.mkdir(exist_ok=True)
        raise


def _clocks(targets: Iterable[EngineTarget]) -> list[dict[str, Any]]:
    """Return the best comparison for each machine."""
    best: dict[tuple[str, str | None], Clock] = {}
    for target in targets:
        clock = target.clock
        if clock is None:
            continue
        known = best.get((clock.host, clock.boot_id))
        if known is None or clock.error_ns < known.error_ns:
            best[clock.host, clock.boot_id] = clock
    return [asdict(clock) for clock in best.values()]
