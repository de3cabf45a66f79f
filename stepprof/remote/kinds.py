"""Find the kind of engine that a target is, and connect a driver to it.

A target is recognised by the names of its type: a library is never imported to ask. Only mistakes
of the user raise.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepprof.errors import ConfigError
from stepprof.remote.base import EngineDriver, EngineKind
from stepprof.untraced import untraced

GROUP = "stepprof.engines"

BUILT_IN = {
    "http": "stepprof.remote.http.kind:HttpKind",
    "ray": "stepprof.remote.ray.kind:RayKind",
    "vllm": "stepprof.remote.vllm.driver:VllmKind",
    "sglang": "stepprof.remote.sglang.driver:SglangKind",
}


class ObjectKind:
    """Recognises the engine objects of one package by the names of their classes."""

    package: str
    names: frozenset[str]
    what: str
    """The engine in messages."""
    driver: Callable[[object, str | None], EngineDriver]
    """Makes a driver for an engine and its name; None: the name of its type."""

    def recognises(self, target: object) -> bool:
        """Return whether the target is one, or of a class derived from one."""
        return any(
            base.__name__ in self.names and base.__module__.partition(".")[0] == self.package
            for base in type(target).__mro__
        )

    def connect(self, target: object, **options: object) -> EngineDriver:
        """Return a driver for the target, without contacting the engine. Raises ConfigError for unknown options."""
        name = options.pop("name", None)
        options = {key: value for key, value in options.items() if key not in ("kind", "find")}
        check_options(options, (), self.what)
        return self.driver(target, None if name is None else str(name))


def connect_all(target: object, options: Mapping[str, object]) -> list[EngineDriver]:
    """Return a driver for each target of a list, with the list's name and a number. Raises ConfigError for one of no known kind."""
    if isinstance(target, (list, tuple, set, frozenset)):
        numbered = options.get("name") is not None and len(target) > 1
        return [
            driver
            for number, each in enumerate(target)
            for driver in connect_all(
                each, {**options, "name": f"{options['name']}-{number}"} if numbered else options
            )
        ]
    if options.get("kind") == "both":
        return [recognise(target, **{**options, "kind": each}) for each in ("engine", "rank")]
    return [recognise(target, **options)]


def recognise(target: object, **options: object) -> EngineDriver:
    """Return a driver for a target, by the kinds of this package and of other packages.

    Raises:
        ConfigError: no kind of engine recognises the target, or its plug-in breaks the contract.
    """
    for kind in _kinds():
        if kind.recognises(target):
            return _checked(kind.connect(target, **options), kind)
    what = type(target)
    raise ConfigError(
        f"attach({what.__module__}.{what.__qualname__}): not a known kind of engine; expected a vLLM or SGLang engine, a URL, a "
        f"Ray actor's handle, a list of those, or a callable that returns them. Other packages add kinds in the entry-point group {GROUP}"
    )


def _checked(driver: object, kind: EngineKind) -> EngineDriver:
    """Return a driver that keeps the contract. Raises ConfigError: a driver of another package may break it."""
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
            hint = f"; did you mean {near[0]}?" if near else f"; its options: {', '.join(names) or 'none'}"
            raise ConfigError.at(key, value, f"{what} has no such option{hint}")


def is_known(target: object) -> bool:
    """Return whether a callable is a target itself: an actor's handle or an engine may be callable too."""
    return any(kind.recognises(target) for kind in _kinds())


def _kinds() -> tuple[EngineKind, ...]:
    """Return the kinds of engine, those of other packages first: they may refine one of this package."""
    return _installed(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> tuple[EngineKind, ...]:
    """Return the kinds that can be imported from this path, cached: the search takes some milliseconds, and happens at every arm."""
    return untraced(_loaded)


def _loaded() -> tuple[EngineKind, ...]:
    from importlib.metadata import entry_points

    theirs = [_made(point.load()) for point in entry_points(group=GROUP)]
    ours = [where.partition(":") for where in BUILT_IN.values()]
    return (*theirs, *(_made(getattr(importlib.import_module(module), name)) for module, _, name in ours))


def _made(kind: Any) -> EngineKind:
    """Return the kind that an entry point names, as a class or an object."""
    made: EngineKind = kind() if isinstance(kind, type) else kind
    return made
