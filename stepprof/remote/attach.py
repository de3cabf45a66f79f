"""Attach an engine, a server or a rank elsewhere, so that it follows the windows of this process; detach it.

Only mistakes of the caller raise here. Whether the engine can be reached is checked before each window, since engines restart.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.config.config import role_name
from stepprof.config.selection import Ranks
from stepprof.instrument.context import open_windows
from stepprof.instrument.step import StepWindow
from stepprof.log import logger
from stepprof.recording.engine_ports import EngineHost, EngineRegistry, waiting
from stepprof.recording.session import current_session
from stepprof.remote.core.registry import Fleet
from stepprof.remote.engine import Engine
from stepprof.remote.kinds import check_options, recognise
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from stepprof.recording.selector import Selector

__all__ = ["Engine", "attach", "check_options", "detach", "recognise"]

_changing = threading.Lock()


def attach(
    target: object,
    *,
    role: str | Sequence[str] = "rollout",
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
        role: the role whose windows the engine follows; of several (``["actor", "ref"]``) the first names it in tables and files. A rank also follows
            windows without a role.
        replica: its number among the engines of the role (for a list: that of the first). None: in the order of attaching.
        kind: of a Ray actor: ``engine`` (it holds one), ``rank`` (a trainer: its own session follows), ``both``, or ``spans``
            (neither: only its regions are kept); of a URL: ``vllm`` or ``sglang``. None: detected.
        find: in an actor: the attribute path of the engine or of its URL, or a callable that takes the actor's instance.
        ranks: the global ranks of the engine, as in the configuration (``"0-7"``); of a list: in equal parts. None: as many ranks as
            the engine has workers, in the order of the replicas.
        trace_dir: a folder that the engine's host and this host share, if they do not share the run directory.
        name: its name in logs and in the manifest; engines of a list get a number after it. An
            actor without a rank (``kind="spans"``) has this name in every table and file. None: its
            URL, its actor's class, or its type.
        options: options of the kind of engine, such as ``api_key`` of a server.

    Returns:
        The attachment, for `detach`.

    Raises:
        ConfigError: the target or an option is unknown, or the configuration selects ranks that a list does not have.
    """
    roles = [role_name(each) for each in ([role] if isinstance(role, str) else [*role] or ["rollout"])]
    given = {"kind": kind, "find": find, "name": name, **options}
    engine = untraced(
        lambda: Engine(
            target,
            role=roles[0],
            also=roles[1:],
            replica=replica,
            ranks=None if ranks is None else Ranks.parse(ranks),
            trace_dir=None if trace_dir is None else Path(trace_dir).absolute(),
            options={key: value for key, value in given.items() if value is not None},
        )
    )
    session = current_session()
    with _changing:
        if session is None:
            waiting[engine] = partial(_join, engine)
        else:
            untraced(partial(session.attach, partial(_join, engine)))
    return engine


def detach(engine: Engine) -> None:
    """End an attachment. A running capture is stopped and kept as partial. A second call does nothing."""
    session = current_session()
    registry = None if session is None else session.fleet
    with _changing:
        if waiting.pop(engine, None) is None and isinstance(registry, Fleet):
            registry.remove(engine)


def _join(engine: Engine, host: EngineHost, registry: EngineRegistry | None) -> Fleet:
    """Add an engine to a session: from its next arm or window on, it takes part.

    Raises:
        ConfigError: the configuration asks for ranks that the engine does not have.
    """
    fleet = registry if isinstance(registry, Fleet) else Fleet(host.origin, host.post, host.changed)
    engine.join(fleet, host.selector.policy(engine.role))
    fleet.add(engine)
    _warn_if_inside(engine, host.selector)
    return fleet


def _warn_if_inside(engine: Engine, selector: Selector) -> None:
    """Log which window an engine records first, if a window that it would have followed is being recorded."""
    for window in open_windows():
        step, role = window.number, window.role
        if not isinstance(window, StepWindow) or not window._after or step is None:
            continue
        if engine.follows(role) or role is None:
            logger.warning(
                "attach.inside_window",
                engine=engine.name,
                step=step,
                role=role,
                takes_part_from=_next(engine, selector, step, role),
            )
            return


def _next(engine: Engine, selector: Selector, step: int, role: str | None) -> str:
    """Name the first window that it can follow."""
    following = selector.next_selected(step, engine.role)
    if not engine.follows(role):  # a window of its own role may still follow in this step
        following = step
    if following >= sys.maxsize:
        return "no window: no later step is selected"
    return f"the first window of role {engine.role} in step {following}"
