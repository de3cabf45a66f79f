"""One attachment: an engine, or all engines of a list or a callable."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepprof.remote.base import RANKS, EngineDriver
from stepprof.remote.core.engine_backends import check_backends_of
from stepprof.remote.core.engine_state import Observer
from stepprof.remote.core.engine_target import EngineTarget
from stepprof.remote.kinds import connect_all, is_known
from stepprof.remote.loop import in_thread

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.config.selection import Ranks


class Registry(Observer, Protocol):
    """The engines that are attached in this process."""

    engines: tuple[Engine, ...]
    """The attachments, in the order of attaching."""

    def regrouped(self) -> None:
        """Note that the targets of an attachment have changed."""


class Engine:
    """An attachment: one engine, or all engines of a list or a callable. `attach` returns it."""

    def __init__(
        self,
        target: object,
        *,
        role: str,
        also: Sequence[str] = (),
        replica: int | None,
        ranks: Ranks | None,
        trace_dir: Path | None,
        options: Mapping[str, object],
    ) -> None:
        self.role = role
        """The role that names it."""
        self.also = frozenset(also)
        """Further roles whose windows it follows."""
        self.targets: tuple[EngineTarget, ...] = ()
        self.stop_seconds = 60.0
        """How long its role waits for the answer to a stop."""
        self.changes = callable(target) and not is_known(target)
        """Whether the list or callable must be asked again for its engines at each arm."""
        self.counts = ranks is None
        """Whether its engines span as many ranks as they have workers, because the caller gave none."""
        self._target = target
        self._first = replica
        self._ranks = ranks
        self._trace_dir = trace_dir
        self._options = options
        self._fleet: Registry | None = None
        self._drivers: list[EngineDriver] = [] if self.changes else connect_all(target, options)
        self.changes = self.changes or any(
            type(driver).expand is not EngineDriver.expand for driver in self._drivers
        )

    def __repr__(self) -> str:
        return f"<Engine {self.role} {self.name}>"

    @property
    def name(self) -> str:
        """Return the name of the attachment, in one line."""
        if self.targets:
            return ", ".join(target.driver.name for target in self.targets[:4])
        return ", ".join(driver.name for driver in self._drivers[:4]) or repr(self._target)

    @property
    def status(self) -> dict[str, str]:
        """Return the state and the health of each engine, by label.

        ``{"rollout/0": "idle, ok"}``
        """
        return {target.label: f"{target.machine.state}, {target.health}" for target in self.targets}

    def join(self, fleet: Registry, policy: Policy) -> None:
        """Become part of a session. Raises ConfigError if the configuration selects ranks that a list does not have."""
        for driver in self._drivers:
            check_backends_of(driver.kind, policy.engine, self.role)
        self._fleet = fleet
        self.stop_seconds = policy.engine_stop_timeout_seconds
        self._take(self._drivers)
        if isinstance(self._target, (list, tuple)) and self._ranks is None:
            there = sum(target.width for target in self.targets)
            policy.ranks.check(there, f"roles.{self.role}.ranks")

    def follows(self, role: str | None) -> bool:
        """Return whether it takes part in windows of this role."""
        if role is None:
            return any(target.is_rank for target in self.targets)
        return self.plays(role)

    def plays(self, role: str) -> bool:
        """Return whether it works in this role."""
        return role == self.role or role in self.also

    def owned(self, target: EngineTarget, first: int) -> list[int]:
        """Return the global ranks of a target: those that `attach` was given, else as many as it has workers, from `first` on."""
        if self._ranks is None:
            return list(range(first, first + target.width))
        said = [rank for low, high in self._ranks.intervals for rank in range(low, high + 1)]
        share = max(len(said) // max(len(self.targets), 1), 1)
        place = self.targets.index(target)
        return said[place * share : (place + 1) * share]

    async def ask_again(self) -> None:
        """Ask the list or callable for its current engines. Raises what the callable raises,
        ConfigError for a target of no known kind.
        """
        if callable(self._target) and not is_known(self._target):
            found = await in_thread(self._target)
            if inspect.isawaitable(found):
                found = await found
            drivers = connect_all(found, self._options)
        else:
            drivers = self._drivers
        found = await asyncio.gather(
            *(driver.expand() for driver in drivers)
        )  # one that hangs does not delay the others
        self._take(itertools.chain.from_iterable(found))

    def _take(self, drivers: Iterable[EngineDriver]) -> None:
        """Keep the targets of engines that still exist, with their state; add new ones; release the others."""
        # the kind of an actor or a server may be known only later: it stays the same target
        wanted = {(driver.key, driver.kind in RANKS): driver for driver in drivers}
        known = {(target.driver.key, target.is_rank): target for target in self.targets}
        staying = [target for key, target in known.items() if key in wanted]
        used = {(other.is_rank, other.replica) for other in (*self._others(), *staying)}
        free = {kind: _free(self._first or 0, kind, used) for kind in (False, True)}
        taken: list[EngineTarget] = []
        for (key, ranks), driver in wanted.items():
            target = known.get((key, ranks))
            if target is None and self._fleet is not None:
                number = driver.rank
                if number is None:
                    number = next(free[ranks])
                used.add((ranks, number))
                target = EngineTarget(
                    driver,
                    self.role,
                    number,
                    self._fleet,
                    self._trace_dir,
                )
            if target is not None:
                taken.append(target)
        before, self.targets = self.targets, tuple(taken)
        for target in set(before) - set(taken):
            target.detach()
        if self._fleet is not None and before != self.targets:
            self._fleet.regrouped()

    def _others(self) -> list[EngineTarget]:
        """Return the targets of the other attachments of this role."""
        engines = () if self._fleet is None else self._fleet.engines
        return [
            target
            for engine in engines
            if engine is not self and engine.role == self.role
            for target in engine.targets
        ]


def _free(first: int, ranks: bool, used: set[tuple[bool, int]]) -> Iterator[int]:
    """Return free numbers, from the first on."""
    return (number for number in itertools.count(first) if (ranks, number) not in used)
