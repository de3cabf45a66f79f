"""``init`` and ``shutdown``: start and end the session of a process.

Every mistake in the configuration is found here, before the first step. Nowhere else does stepprof
raise into the training loop.
"""

from __future__ import annotations

import itertools
import os
import platform
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from stepprof.backends import check_plugins
from stepprof.config.config import Config, ignored_variables, load
from stepprof.config.loaders import CONFIG_VARIABLE, KEY_OF_VARIABLE, switched_off
from stepprof.host import real_time
from stepprof.host.command_line import command_line
from stepprof.host.rank import find_identity
from stepprof.host.worker_packages import is_importing_main
from stepprof.instrument.context import cell
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.deferred import Deferred, forget_deferred
from stepprof.recording.session import Session, current_session
from stepprof.run.announced import announce_off
from stepprof.run.job_store import JobStore
from stepprof.run.layout import open_run
from stepprof.run.names import process_name
from stepprof.untraced import untraced

_CONFIGURING = (CONFIG_VARIABLE, *KEY_OF_VARIABLE)
_starting = threading.Lock()
_opened = itertools.count(1)


def init(
    config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
    name: str | None = None,
) -> Session:
    """Start the session of this process. From now on windows and regions are recorded as configured.

    Args:
        config: a `Config`, a mapping (also an OmegaConf node), the path of a TOML file, or None: ``$STEPPROF_CONFIG``, then the
            ``STEPPROF_*`` variables. Without any of them no step is selected: spans are kept, and `stepprof trigger` can
            request a step. An actor or task of Ray then waits until its driver attaches it.
        rank: the global rank. None: that of torch.distributed, if it is initialised, else of the launcher's variables, else 0 of 1.
        world_size: the number of ranks, if ``rank`` is given.
        run_id: the name of the run. None: from the launcher, so that all ranks agree.
        name: the name of this process in tables, files and headlines if it has no rank: ``driver``, ``reward``. Different
            processes need different names. None: ``driver``, or in a Ray actor or task ``actor-`` or ``worker-`` and the beginning of its id.

    Returns:
        The session. A second call with the same configuration returns the same session. With another one, or another
        ``run_id``, the first session ends as by `shutdown`, and the next one has a run of its own: a sweep or a search in one process.
        While the main module is imported for a child of multiprocessing, the session has no run: one begins with the first window of that child.

    Raises:
        ConfigError: the configuration is wrong, or cannot match this job; or ``output_dir`` is not writable, or ``name`` is
            not a plain name.
    """
    settled = untraced(lambda: load(config))
    ignored = {} if config is None else ignored_variables(settled, os.environ)
    waits = config is None and _is_ray_worker() and not any(map(os.environ.get, _CONFIGURING))
    with _starting:
        _end_another(settled, run_id)  # on this thread: it may be the only one that can stop a capture
        forget_deferred()

    def open_now() -> Session:
        return untraced(
            lambda: open_session(
                settled,
                rank=rank,
                world_size=world_size,
                run_id=run_id,
                name=name,
                ignored=ignored,
                waits=waits,
            )
        )

    if not is_importing_main() or current_session() is not None or _is_off(settled):
        return open_now()
    Deferred(open_now, strict=settled.strict)
    return Session(settled, find_identity(rank, world_size, os.environ), None)


def open_session(
    settled: Config,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
    name: str | None = None,
    ignored: Mapping[str, str] | None = None,
    waits: bool = False,
) -> Session:
    """Do the work of `init`; adapters and attached actors call it with a configuration that is not the script's.

    Args:
        settled: the configuration.
        rank: as `init` takes it, like `world_size`, `run_id` and `name`.
        world_size: the same.
        run_id: the same.
        name: the same.
        ignored: variables that the script's own configuration contradicts.
        waits: the driver will configure this process.
    """
    called = None if name is None else process_name(name)
    with _starting:
        session = _end_another(settled, run_id)
        if session is not None:
            if session.lent:
                logger.info("init.deferred", run_id=session.run_id)
            session.by_adapter = False
            return session
        identity = find_identity(rank, world_size, os.environ, called)
        if ignored:
            logger.warning("config.variables_ignored", variables=", ".join(ignored))
        if waits:
            logger.info("init.waiting")
        if _is_off(settled):
            announce_off(_why_off(settled), os.environ)
        if waits or _is_off(settled):
            return Session(settled, identity, None)
        if identity.world_size is not None and (identity.final or world_size is not None):
            settled.check_world(identity.world_size)
        policies = (settled.policy(role) for role in (None, *settled.roles))
        check_plugins(dict.fromkeys(name for policy in policies for name in policy.backend))
        for warning in settled.warnings():
            logger.warning("config.expensive", reason=warning)
        store = JobStore(next(_opened))
        run = open_run(
            Path(settled.output_dir),
            run_id=run_id,
            rank=identity.rank,
            world_size=identity.world_size,
            environ=os.environ,
            description={**describe(settled), "ignored_variables": _without_secrets(ignored or {})},
            store=store,
        )
        session = Session(settled, identity, run, store)
        session.asked_run_id = run_id
        session.start()
        return session


def _is_off(settled: Config) -> bool:
    return not settled.enabled or (settled.off and not settled.spans)


def _why_off(settled: Config) -> str:
    if switched_off(os.environ):
        return "$STEPPROF switches stepprof off"
    return (
        "in a process of the job no step is selected, and spans = false"
        if settled.enabled
        else "a process of the job has enabled = false"
    )


def shutdown(timeout: float | None = None) -> None:
    """End the session: close open windows and wait ``timeout`` seconds (None: 120) for the exports. Idempotent; also runs at exit.

    >>> shutdown()
    """
    session = current_session()
    if session is not None:
        session.shutdown(timeout)
    forget_deferred()


def _end_another(settled: Config, run_id: str | None) -> Session | None:
    """End the session of this process if `init` asks for another one. Return the session that goes on, or None.

    A session that an adapter started, or one of another process, is not compared by its run.
    """
    session = current_session()
    if session is None or session.lent:
        return session
    if session.config == settled and (session.by_adapter or run_id in (None, session.asked_run_id)):
        return session
    if session.by_adapter:
        session.shutdown(reason="the job called init itself")
    else:
        logger.info("init.again", run_id=session.run_id, keys=_difference(session.config, settled))
        session.shutdown(reason="init was called again with another configuration")
    return None


def _difference(before: Config, after: Config) -> str:
    """Return the keys of two configurations that differ."""
    old, new = before.to_dict(), after.to_dict()
    return ", ".join(key for key in old if old[key] != new.get(key)) or "run_id"


_PACKAGES = (
    "stepprof", "torch", "torch_npu", "ray", "vllm", "sglang", "transformers", "trl", "verl", "accelerate",
    "deepspeed", "lightning", "megatron", "openrlhf", "peft",
)  # fmt: skip


def describe(config: Config) -> dict[str, object]:
    """Return the description of the job for `run.json`. Only packages that are already imported have a version."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        found = getattr(sys.modules.get(name), "__version__", None)
        if found is not None:
            versions[name] = str(found)
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if isinstance(cuda, str):
        versions["cuda"] = cuda
    return {
        "created_unix_ns": real_time.time_ns(),
        "command": _command(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions,
        "adapters": dict(cell.adapters),
        "config": _shown(config),
    }


def _shown(config: Config) -> dict[str, object]:
    """Return the configuration with the secrets in the arguments of a command masked."""
    content = config.to_dict()
    if config.on_complete is not None:
        content["on_complete"] = command_line(config.on_complete, os.environ)
    return content


def _without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the secrets in the arguments of commands masked."""
    import shlex  # imported only for a mistake

    shown = {}
    for name, value in variables.items():
        try:
            shown[name] = shlex.join(command_line(shlex.split(value), os.environ))
        except ours(ValueError):  # no command either: it is kept if it has no secret
            shown[name] = " ".join(command_line([value], os.environ))
    return shown


def _command() -> list[str] | None:
    """Return the command line; None in a worker of Ray: that is not the job's."""
    return None if _is_ray_worker() else command_line(sys.orig_argv, os.environ)


def _is_ray_worker() -> bool:
    return Path(sys.argv[0] if sys.argv else "").name == "default_worker.py"
