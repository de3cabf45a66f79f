"""Find the rank of this process, as far as possible without a collective.

torch.distributed has it once initialised, launchers set it in the environment, and Ray's process
type implies it. A library is only asked if it is already loaded: asking Ray in a process without it
would start one.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepprof.errors import ConfigError
from stepprof.interrupts import ours

SHORT_ID = 8
"""The number of digits of an actor's id that distinguish the actors of one job."""

_PMI = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2
)
_SLURM_SPECIAL_STEPS = 0xFFFFFFF0
"""The steps from here on are no `srun`: the batch script, the interactive shell of `salloc`."""

DRIVER = "driver"
"""The name of a process that drives others, and computes nothing itself."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of the job.

    ``final`` is False if no source gave its rank yet; ``records`` is False of a process of Ray that
    drives others: it has nothing to record.
    """

    rank: int | str
    world_size: int | None
    source: str
    final: bool = True
    records: bool = True


def find_identity(
    rank: int | None, world_size: int | None, environ: Mapping[str, str], name: str | None = None
) -> Identity:
    """Return rank and world size: given, else from torch.distributed, the launcher's variables,
    Ray, else 0 of 1. A process without a rank has a name instead.

    Raises:
        ConfigError: a rank or a world size is not an integer, or a rank lies beyond its world.

    >>> find_identity(None, None, {"RANK": "3", "WORLD_SIZE": "8"})
    Identity(rank=3, world_size=8, source='$RANK', final=True, records=True)
    """
    if world_size is not None:
        world_size = _whole("world_size", world_size)
    if rank is not None:
        return _checked(Identity(_whole("rank", rank), world_size, "rank"))
    distributed = _distributed()
    if distributed is not None:
        return Identity(distributed[0], distributed[1], "torch.distributed")
    if environ.get("RANK", "") != "":
        world = _number("WORLD_SIZE", environ) if environ.get("WORLD_SIZE", "") != "" else world_size
        return _checked(Identity(_number("RANK", environ), world, "$RANK"))
    ray = _ray()
    if ray is not None:
        called = name or ray
        return Identity(called, world_size, "ray", final=False, records=DRIVER not in (called, ray))
    monarch = _monarch(name, environ)
    if monarch is not None:
        return monarch
    task = started_task(environ)
    if task is not None:
        return task
    started = _started_by_rank(environ)
    if started is not None:
        return _checked(started)
    if name is not None:
        return Identity(name, world_size, "name", final=False)
    return _checked(Identity(0, 1 if world_size is None else world_size, "default", final=False))


def slurm_step(environ: Mapping[str, str]) -> str | None:
    """Return `<job>.<step>` of the `srun` that started several tasks, of which this is one.

    A batch script, the shell of `salloc` and the processes that they start have variables of Slurm
    too, and those of a task of its own: none of them tells the processes of a job apart.

    >>> slurm_step({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"})
    '7.0'
    >>> slurm_step({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or ""
    is_srun = step.isdecimal() and int(step) < _SLURM_SPECIAL_STEPS
    return f"{job}.{step}" if job and is_srun and tasks.isdecimal() and int(tasks) > 1 else None


def started_task(environ: Mapping[str, str]) -> Identity | None:
    """Return the rank that a launcher of tasks gave, `mpirun` or `srun`; None if there is one task.

    It is not final: a task may start the ranks of a process group itself. Values that are no rank are
    ignored: these variables reach every process that a task starts.
    """
    # Open MPI starts its daemons by srun, and leaves the variables of that to the ranks
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return _of_task("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", environ)
    if slurm_step(environ) is not None:
        world_name = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        return _of_task("SLURM_PROCID", world_name, environ)
    for rank_name, world_name in _PMI:
        if environ.get(rank_name):
            return _of_task(rank_name, world_name, environ)
    rank = environ.get("PMIX_RANK", "")  # the launchers of PMIx give no number of ranks
    if rank.isdecimal() and not environ.get("PMIX_NAMESPACE", "slurm").startswith("slurm"):
        return Identity(int(rank), None, "$PMIX_RANK", final=False)
    return None


def _of_task(rank_name: str, world_name: str, environ: Mapping[str, str]) -> Identity | None:
    rank, world = environ.get(rank_name, ""), environ.get(world_name, "")
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world) != 1):
        return None
    return Identity(int(rank), int(world), f"${rank_name}", final=False)


def _started_by_rank(environ: Mapping[str, str]) -> Identity | None:
    """Return the rank of a process that Lightning's first process of the node has started.

    Lightning gives the rank within the node, and the total number of processes.
    """
    if any(environ.get(name, "") == "" for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return None
    world, local = _number("WORLD_SIZE", environ), _number("LOCAL_RANK", environ)
    if environ.get("NODE_RANK", "") != "0":  # the number of ranks on the nodes before this one is unknown
        return Identity(0, world, "default", final=False)
    return Identity(local, world, "$LOCAL_RANK")


def _checked(identity: Identity) -> Identity:
    rank, world = identity.rank, identity.world_size
    if not isinstance(rank, int):
        return identity
    if world is not None and world < 1:
        raise ConfigError(f"world_size = {world}: a world has at least one rank; did you mean 1?")
    if rank < 0 and world is None:
        raise ConfigError(f"rank = {rank} ({identity.source}): there are no negative ranks; did you mean 0?")
    if world is not None and not 0 <= rank < world:
        raise ConfigError(
            f"rank = {rank} ({identity.source}): a world of {world} has the ranks 0 to {world - 1}; "
            f"did you mean {min(max(rank, 0), world - 1)}?"
        )
    return identity


def _whole(name: str, value: object) -> int:
    """Return a given number as a plain integer; numpy's integers are accepted too."""
    if not isinstance(value, (bool, str)):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except ours(TypeError):
            pass
    raise ConfigError.at(name, value, "expected an integer")


def _number(name: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[name])
    except ours(ValueError):
        raise ConfigError.at(f"${name}", environ[name], "expected an integer, as launchers set it") from None


def _distributed() -> tuple[int, int] | None:
    torch: Any = sys.modules.get("torch")
    distributed: Any = getattr(torch, "distributed", None)
    # another thread may be importing it
    initialized = getattr(distributed, "is_initialized", None)
    if initialized is None or not distributed.is_available() or not initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _monarch(name: str | None, environ: Mapping[str, str]) -> Identity | None:
    """Return the place of a Monarch actor in its mesh; the name of the client that started the actors.

    `current_rank()` would start a client in a process without an actor: only a context that exists is asked.
    """
    mesh: Any = sys.modules.get("monarch._src.actor.actor_mesh")
    if mesh is None:
        return None
    if not environ.get("HYPERACTOR_MESH_BOOTSTRAP_MODE"):
        return Identity(name or "driver", None, "monarch", final=False)
    try:
        point = mesh._context.get().actor_instance.rank
        return _checked(Identity(int(point.rank), int(point.extent.nelements), "monarch", final=False))
    except ours(AttributeError, TypeError, ValueError, ConfigError):  # no actor here, or another Monarch
        return None


def _ray() -> str | None:
    """Return the name of a process of Ray: its driver, an actor, or a worker that runs a task."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return None
    context = ray.get_runtime_context()
    actor = context.get_actor_id()
    if actor is not None:
        return f"actor-{actor[:SHORT_ID]}"
    return (
        f"worker-{context.get_worker_id()[:SHORT_ID]}" if context.worker.mode == ray.WORKER_MODE else DRIVER
    )
