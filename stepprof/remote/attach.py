"""``attach`` and ``detach``: how an engine, a server or a rank elsewhere comes to follow the windows of this process.

What a target is, is told by the names of its type: a library is never imported to ask. Only what the user wrote wrongly raises
here; whether the engine can be reached is found out when a window is about to come, again and again, since engines restart.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.config.config import role_name
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.remote.base import EngineDriver, EngineKind
from stepprof.remote.core.engine_backends import check_backends_of
from stepprof.remote.core.engine_target import EngineTarget
from stepprof.remote.core.manifest_entries import RANKS
from stepprof.remote.loop import in_thread

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.remote.core.registry import Fleet

__all__ = ["Engine", "attach", "detach", "recognise", "waiting"]

GROUP = "stepprof.engines"

BUILT_IN = {
    "http": "stepprof.remote.http.kind:HttpKind",
    "ray": "stepprof.remote.ray.kind:RayKind",
    "vllm": "stepprof.remote.vllm.driver:VllmKind",
    "sglang": "stepprof.remote.sglang.driver:SglangKind",
}

KINDS = ("engine", "rank", "both", "spans")

_changing = threading.Lock()

waiting: list[Engine] = []
"""Attached before there was a session: the next one takes them over."""


def attach(
    target: object,
    *,
    role: str = "rollout",
    replica: int | None = None,
    kind: str | None = None,
    find: str | Callable[..., object] | None = None,
    ranks: object = None,
    trace_dir: str | Path | None = None,
    name: str | None = None,
    **options: object,
) -> Engine:
    """Make an engine, or a rank in another process, follow the windows of a role.

    Args:
        target: an engine object (vLLM's ``AsyncLLM`` or ``LLM``, SGLang's ``Engine`` or ``TokenizerManager``), the URL of a server or
            router, a Ray actor's handle, a list of those, or a callable that returns them. A callable is called again before each
            recorded step, because engines restart and scale.
        role: the role whose windows the engine follows. A rank also follows windows without a role.
        replica: its number among the engines of the role (for a list: that of the first). None: in the order of attaching.
        kind: of a Ray actor: ``engine`` (it holds one), ``rank`` (a trainer: its own session follows), ``both``, or ``spans``
            (neither: only its regions are kept); of a URL: ``vllm`` or ``sglang``. None: detected.
        find: in an actor: the attribute path of the engine or of its URL, or a callable that takes the actor's instance.
        ranks: the global ranks of the engine, as in the configuration (``"0-7"``); of a list: in equal parts. None: as many ranks as
            the engine has workers, in the order of the replicas.
        trace_dir: a folder that the engine's host and this host share, if they do not share the run directory.
        name: its name in logs and in the manifest. None: its URL, its actor's name, or its type.
        options: options of the kind of engine, such as ``api_key`` of a server.

    Returns:
        The attachment, for `detach`.

    Raises:
        ConfigError: the target or an option is unknown, or the configuration selects ranks that a list does not have.
    """
    given = {"kind": kind, "find": find, "name": name, **options}
    engine = Engine(
        target,
        role=role_name(role),
        replica=replica,
        ranks=None if ranks is None else Ranks.parse(ranks),
        trace_dir=None if trace_dir is None else Path(trace_dir).absolute(),
        options={key: value for key, value in given.items() if value is not None},
    )
    session = cell.session
    with _changing:
        if session is None:
            waiting.append(engine)
        else:
            session.attach(engine)
    return engine


def detach(engine: Engine) -> None:
    """End an attachment. A running capture is stopped and kept as partial. A second call does nothing."""
    session = cell.session
    with _changing:
        if engine in waiting:
            waiting.remove(engine)
        elif session is not None:
            session.detach(engine)


class Engine:
    """An attachment: one engine, or all engines of a list or a callable. `attach` returns it."""

    def __init__(
        self,
        target: object,
        *,
        role: str,
        replica: int | None,
        ranks: Ranks | None,
        trace_dir: Path | None,
        options: Mapping[str, object],
    ) -> None:
        self.role = role
        self.targets: tuple[EngineTarget, ...] = ()
        self.stop_seconds = 60.0
        """How long its role waits for the answer to a stop."""
        self.changes = callable(target) and not _is_known(target)
        """Whether who the engines are has to be asked again at each arm."""
        self.counts = ranks is None
        """Whether its engines span as many ranks as they have workers: nobody said which."""
        self._target = target
        self._first = replica
        self._ranks = ranks
        self._trace_dir = trace_dir
        self._options = options
        self._fleet: Fleet | None = None
        self._drivers: list[EngineDriver] = [] if self.changes else connect_all(target, options)
        self.changes = self.changes or any(hasattr(driver, "expand") for driver in self._drivers)

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

    def join(self, fleet: Fleet, policy: Policy) -> None:
        """Become part of a session. Raises ConfigError where the configuration asks for ranks that a list does not have."""
        for driver in self._drivers:
            check_backends_of(driver.kind, policy.engine, self.role)
        self._fleet = fleet
        self.stop_seconds = policy.engine_stop_timeout_seconds
        self._take(self._drivers)
        if isinstance(self._target, (list, tuple)):
            self._check_ranks(policy)

    def _check_ranks(self, policy: Policy) -> None:
        if self._ranks is None:
            there = sum(target.width for target in self.targets)
            policy.ranks.check(there, f"roles.{self.role}.ranks")

    def follows(self, role: str | None) -> bool:
        """Whether windows of this role are its business."""
        if role == self.role:
            return True
        return role is None and any(target.is_rank for target in self.targets)

    def owned(self, target: EngineTarget, first: int) -> list[int]:
        """The global ranks that a target spans: those that were said, else as many as it has workers, from the `first` that is free."""
        if self._ranks is None:
            return list(range(first, first + target.width))
        said = [rank for low, high in self._ranks.intervals for rank in range(low, high + 1)]
        share = max(len(said) // max(len(self.targets), 1), 1)
        place = self.targets.index(target)
        return said[place * share : (place + 1) * share]

    async def ask_again(self) -> None:
        """Who the engines are now. Raises what the callable raises, ConfigError for what nobody knows."""
        if callable(self._target) and not _is_known(self._target):
            found = await in_thread(self._target)
            if inspect.isawaitable(found):
                found = await found
            drivers = connect_all(found, self._options)
        else:
            drivers = self._drivers
        found = await asyncio.gather(
            *(driver.expand() for driver in drivers)
        )  # one that hangs delays no other
        self._take(itertools.chain.from_iterable(found))

    def _take(self, drivers: Iterable[EngineDriver]) -> None:
        """Keep the targets of engines that are still there, with their state; make new ones; let the others go."""
        # what an actor or a server is may be known only later: it stays the same one
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
        if self._fleet is not None and before != self.targets:
            self._fleet.changed()

    def _others(self) -> list[EngineTarget]:
        """Targets that other attachments of this role have."""
        engines = () if self._fleet is None else self._fleet.engines
        return [
            target
            for engine in engines
            if engine is not self and engine.role == self.role
            for target in engine.targets
        ]


def _free(first: int, ranks: bool, used: set[tuple[bool, int]]) -> Iterator[int]:
    """The numbers from the first on that nobody has."""
    return (number for number in itertools.count(first) if (ranks, number) not in used)


def connect_all(target: object, options: Mapping[str, object]) -> list[EngineDriver]:
    """A driver for each target of a list. Raises ConfigError where nobody knows one."""
    if isinstance(target, (list, tuple, set, frozenset)):
        return [driver for each in target for driver in connect_all(each, options)]
    if options.get("kind") == "both":
        return [recognise(target, **{**options, "kind": each}) for each in ("engine", "rank")]
    return [recognise(target, **options)]


def recognise(target: object, **options: object) -> EngineDriver:
    """A driver for a target, by the kinds of the package and those of other packages.

    Raises:
        ConfigError: no kind of engine recognises the target, or its plug-in breaks the contract.
    """
    for kind in _kinds():
        if kind.recognises(target):
            return _checked(kind.connect(target, **options), kind)
    what = type(target)
    raise ConfigError(
        f"attach({what.__module__}.{what.__qualname__}): not an engine that anybody knows; expected a vLLM or SGLang engine, a URL, a "
        f"Ray actor's handle, a list of those, or a callable that returns them. Other packages add kinds in the entry-point group {GROUP}"
    )


def _checked(driver: object, kind: EngineKind) -> EngineDriver:
    """A driver of another package may break the contract. Raises ConfigError."""
    made = f"{type(kind).__module__}.{type(kind).__qualname__}.connect() returned {type(driver).__qualname__}"
    if not isinstance(driver, EngineDriver):
        raise ConfigError(f"{made}: must derive from stepprof.remote.base.EngineDriver")
    missing = [name for name in ("kind", "name", "key") if not hasattr(driver, name)]
    if missing:
        raise ConfigError(f"{made}: must set {', '.join(missing)}")
    return driver


def check_options(given: Mapping[str, object], known: Iterable[str], what: str) -> None:
    """Refuse an option that a kind of engine does not know. Raises ConfigError with the nearest one."""
    names = list(known)
    for key, value in given.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it knows: {', '.join(names) or 'none'}"
            raise ConfigError.at(key, value, f"{what} has no such option{hint}")


def _is_known(target: object) -> bool:
    """Whether a callable is a target itself: an actor's handle or an engine may be callable too."""
    return any(kind.recognises(target) for kind in _kinds())


def _kinds() -> tuple[EngineKind, ...]:
    """Those of other packages first: who brings one for an engine of ours knows it better."""
    return _installed(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> tuple[EngineKind, ...]:
    """What can be imported from this path. Looked for once: it takes some milliseconds, and who the engines are is asked at every arm."""
    from importlib.metadata import entry_points

    theirs = [_made(point.load()) for point in entry_points(group=GROUP)]
    ours = [where.partition(":") for where in BUILT_IN.values()]
    return (*theirs, *(_made(getattr(importlib.import_module(module), name)) for module, _, name in ours))


def _made(kind: Any) -> EngineKind:
    """Entry points may name the class or an object of it."""
    made: EngineKind = kind() if isinstance(kind, type) else kind
    return made
