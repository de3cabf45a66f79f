"""Find the engine that an actor holds: by a path of attributes, by a callable, or because it is the only one.

Each failure has its own message: a wrong name, a headless node, several candidates.
"""

from __future__ import annotations

import contextlib
import difflib

from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.remote.base import EngineFailure
from stepprof.run.manifest_writer import describe_error


def locate(actor: object, find: object) -> object:
    """Return the engine in an actor: by a path of attributes, or by a callable."""
    if callable(find):
        try:
            found = find(actor)
        except ours(Exception) as error:  # the user's
            raise EngineFailure(f"find raised {describe_error(error)}", "unconfigured") from None
    else:
        found = actor
        for name in str(find).removeprefix("self.").split("."):
            try:
                found = getattr(found, name)
            except ours(Exception) as error:  # a property may raise anything
                raise EngineFailure(_missing(str(find), found, name, error), "unconfigured") from None
    if found is None:
        raise EngineFailure(
            f"find = {shown(find)} is None: a headless node serves no engine; "
            "attach the actor that holds the engine's head",
            "unconfigured",
        )
    return found


def _missing(path: str, owner: object, name: str, error: Exception) -> str:
    if not isinstance(error, AttributeError):
        return f'find = "{path}": {name} raised {describe_error(error)}'
    there = [key for key in dir(owner) if not key.startswith("__")]
    near = difflib.get_close_matches(name, there, 1)
    hint = f'; did you mean "{near[0]}"?' if near else f" (it has: {', '.join(there[:12])})"
    return f'find = "{path}": {type(owner).__name__} has no attribute "{name}"{hint}'


def only_engine(actor: object) -> str:
    """Return the only attribute of the actor that is an engine. Raises EngineFailure: there is none, or several."""
    from stepprof.remote.kinds import recognise

    found: list[str] = []
    for name, value in getattr(actor, "__dict__", {}).items():
        if isinstance(value, str) or value is None:
            continue
        with contextlib.suppress(ConfigError):
            recognise(value)
            found.append(name)
    if len(found) == 1:
        return found[0]
    name = str(getattr(type(actor), "__ray_actor_class__", type(actor)).__name__)
    what = f"several are engines ({', '.join(found)})" if found else "none is a known kind of engine"
    raise EngineFailure(
        f'of the attributes of {name} {what}; set one of: kind="engine" with find = the attribute that holds the engine, '
        'kind="rank" for a trainer, kind="both" for both in one, kind="spans" for anything else',
        "unconfigured",
    )


def same_url(one: object, other: object) -> bool:
    """Return whether both are the same URL: URLs are compared by value, engines by identity."""
    return isinstance(one, str) and one == other


def shown(find: object) -> str:
    """Return the value of ``find`` for a message."""
    return f'"{find}"' if isinstance(find, str) else str(getattr(find, "__name__", repr(find)))
