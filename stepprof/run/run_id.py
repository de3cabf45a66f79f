"""Find the run of a process: the same answer in every process of a job, without a collective.

In order of authority: the user, the scheduler of the whole job, the launcher of the ranks, the
process that started this rank. Without any of these the process is a job of its own. If
torch.distributed is initialised, its ranks then agree on one of their answers. Nothing is started
here: Ray is asked only if the program has initialised it (`ray.get_runtime_context()` would start
it).
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.errors import ConfigError
from stepprof.host.process_identity import writer_identity
from stepprof.host.rank import slurm_step, started_task
from stepprof.interrupts import ignored, ours
from stepprof.run.finished import usable_name
from stepprof.run.names import LONGEST_NAME, is_plain_name, safe_name
from stepprof.run.rendezvous import (
    Launcher,
    claim_for_launcher,
    claim_for_process,
    current_launcher,
    run_of_parent,
)

if TYPE_CHECKING:
    from stepprof.run.job_store import JobStore

_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0")


@dataclass(frozen=True, slots=True)
class Agreement:
    """The name of the run and its source. run.json has both, to compare ranks that are in two runs."""

    run_id: str
    source: str


def agree_on_run(
    output_dir: Path,
    *,
    run_id: str | None,
    world_size: int | None,
    environ: Mapping[str, str],
    rank: int | str | None = None,
    store: JobStore | None = None,
) -> Agreement:
    """Return the run of this process.

    Args:
        output_dir: the folder of the runs; only the last sources (the parent, a claim per launcher or process) use it.
        store: the store of the torch.distributed job, to agree on one of several claims.
        run_id: the caller's name; it must be a plain name.
        world_size: number of ranks of the job, if known.
        environ: the environment of the process.
        rank: the rank of this process, as far as known: its job gets a run of its own if that of the name is over.

    Raises:
        ConfigError: `run_id` is not a plain name.
        OSError: a claim cannot be written to `output_dir`.
    """
    group = _replica_group(environ)
    if run_id is not None:
        if not is_plain_name(run_id):
            raise ConfigError(
                f'run_id = "{run_id}": not a plain name; use letters, digits, ".", "_" and "-", at most {LONGEST_NAME}, not beginning with "."; did you mean "{safe_name(run_id) or "run"}"?'
            )
        return Agreement(usable_name(output_dir, run_id + group), "run_id")
    for source, name in (
        ("STEPPROF_RUN_ID", environ.get("STEPPROF_RUN_ID")),
        ("ray", _ray_job(environ)),
        ("monarch", _monarch_job(environ)),
        ("slurm", _slurm_step(environ)),
        ("torchelastic", _elastic_run(environ)),
    ):
        safe = safe_name(name or "")
        if safe:
            safe += group
            may_be_over = source in ("monarch", "slurm", "torchelastic") and not _is_restarted(environ)
            return Agreement(usable_name(output_dir, safe, rank if may_be_over else None), source)
    claimed = _claimed(output_dir, world_size, environ, rank)
    if claimed.source in ("process", "launcher") and store is not None and store.is_up():
        settled = store.agree(claimed.run_id)
        if settled is not None and (settled != claimed.run_id or claimed.source == "process"):
            if settled != claimed.run_id:
                with ignored(OSError):  # the folder of our own claim, unless another rank uses it
                    (output_dir / claimed.run_id).rmdir()
            claimed = Agreement(settled, "torch.distributed")
    return claimed


def job_key(environ: Mapping[str, str], world_size: int | None) -> str | None:
    """Return a string that only the processes of this job have, whatever the run's name; None if unknown."""
    launched = _ray_job(environ) or _monarch_job(environ) or _elastic_run(environ)
    if launched:
        return launched + _replica_group(environ)
    key = _rendezvous(environ, world_size)
    if key is not None:
        return f"{key} {current_launcher(own=_starts_ranks(environ)).host}" if _is_loopback(environ) else key
    step = _mpi_job(environ) or _slurm_step(environ)
    if step is not None or (world_size or 1) > 1:
        return step
    alone = writer_identity()
    return f"process {alone['boot_id'] or alone['host']} {alone['pid_namespace']} {alone['pid']} {alone['pid_start']}"


def _is_loopback(environ: Mapping[str, str]) -> bool:
    """Return whether the rendezvous address is a loopback address, which every machine has."""
    return bool(_LOOPBACK.fullmatch(environ["MASTER_ADDR"]))


def _claimed(
    output_dir: Path, world_size: int | None, environ: Mapping[str, str], rank: int | str | None
) -> Agreement:
    """Return the run by the file system: of the parent, of the launcher, or of this process alone."""
    parents = run_of_parent(output_dir) if _is_started_by_rank(environ) else None
    if parents is not None:
        return Agreement(parents, "parent")
    key = _rendezvous(environ, world_size)
    launcher = current_launcher(own=_starts_ranks(environ))
    if key is None:
        key = _mpi_job(environ)
        if key is None:
            return Agreement(claim_for_process(output_dir), "process")
        launcher = _mpi_launcher(environ, launcher)
    elif _is_loopback(environ):
        key = f"{key} {launcher.host}"
    ended = None if _is_restarted(environ) else rank
    try:
        run_id = claim_for_launcher(output_dir, key, launcher, world_size, rank=ended)
    except ConfigError as error:  # files of other users, which must not end the job
        from stepprof.log import logger  # readers of a run work without structlog

        logger.warning("run.claims_unusable", reason=str(error))
        return Agreement(claim_for_process(output_dir), "process")
    return Agreement(run_id, "launcher")


def _slurm_step(environ: Mapping[str, str]) -> str | None:
    task = started_task(environ)
    if task is None or task.source != "$SLURM_PROCID":
        return None
    step = f"slurm-{slurm_step(environ)}"
    if environ.get("SLURM_RESTART_COUNT", "0") != "0":  # a requeued job counts its steps from zero again
        step += f".r{environ['SLURM_RESTART_COUNT']}"
    return step


def _mpi_job(environ: Mapping[str, str]) -> str | None:
    """Return what the ranks of one `mpirun` have in common; None if it did not start this process."""
    task = started_task(environ)
    if task is None or task.source == "$SLURM_PROCID":
        return None
    # MPICH has no name of the job: then the launcher decides, and each host has a run
    return f"mpi {environ.get('PMIX_NAMESPACE') or current_launcher().host}"


def _mpi_launcher(environ: Mapping[str, str], launcher: Launcher) -> Launcher:
    """Return the daemon of `mpirun` on this host: a wrapper script may be the parent of each rank."""
    servers = sorted(name for name in environ if name.startswith("PMIX_SERVER_URI"))
    return (
        dataclasses.replace(launcher, token=f"{launcher.host} {environ[servers[0]]}") if servers else launcher
    )


def _is_restarted(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun has started the ranks again: they go on with their run."""
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def _monarch_job(environ: Mapping[str, str]) -> str | None:
    """Return the name of the processes that Monarch started, and of their client."""
    execution = environ.get("HYPERACTOR_EXECUTION_ID")
    return f"monarch-{execution}" if execution and "monarch._src.actor.actor_mesh" in sys.modules else None


def _replica_group(environ: Mapping[str, str]) -> str:
    """Return the ending of a run's name for a replica group of torchft: each has a rank 0."""
    group = environ.get("REPLICA_GROUP_ID", "")
    return f"-group-{int(group)}" if group.isdecimal() and environ.get("NUM_REPLICA_GROUPS") != "1" else ""


def _elastic_run(environ: Mapping[str, str]) -> str | None:
    name = environ.get("TORCHELASTIC_RUN_ID")
    return f"torchrun-{name}" if name and name != "none" else None


def _starts_ranks(environ: Mapping[str, str]) -> bool:
    """Return whether this is Lightning's first process of a node, which starts the node's other ranks."""
    return bool(environ.get("NODE_RANK")) and not environ.get("LOCAL_RANK")


def _is_started_by_rank(environ: Mapping[str, str]) -> bool:
    """Return whether Lightning's first process of the node has started this rank.

    With spawn and fork it starts rank 0 as well, and is no rank itself: a run of its own is not theirs.
    """
    if environ.get("LOCAL_RANK", "0") in ("", "0") or environ.get("TORCHELASTIC_RUN_ID"):
        return False
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    return multiprocessing is None or multiprocessing.parent_process() is None


def _rendezvous(environ: Mapping[str, str], world_size: int | None) -> str | None:
    """Return what the ranks of an unnamed job have in common; None if this process is alone."""
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    together = (world_size or 1) > 1 or environ.get("TORCHELASTIC_RUN_ID") == "none" or _starts_ranks(environ)
    return f"{address} {port}{_replica_group(environ)}" if address and port and together else None


def _ray_job(environ: Mapping[str, str]) -> str | None:
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return None
    try:
        return _ask_ray(ray, environ)
    except ours(Exception) as error:  # whatever Ray's internals raise, it must not reach the user's init
        from stepprof.log import logger  # readers of a run work without structlog

        logger.warning("run.job_unnamed", reason=f"{type(error).__name__}: {error}")
        return None


def _ask_ray(ray: Any, environ: Mapping[str, str]) -> str:
    submitted = _ray_submission(ray, environ)
    if submitted:
        return submitted
    context = ray.get_runtime_context()
    ask = getattr(context, "get_session_name", None)  # recent Ray; in older ones the worker's node has it
    session = (
        ask()
        if ask
        else getattr(getattr(ray._private.worker.global_worker, "node", None), "session_name", None)
    )
    return f"ray-{session or context.gcs_address}-{context.get_job_id()}"


def _ray_submission(ray: Any, environ: Mapping[str, str]) -> str | None:
    """Return the id of `ray job submit`.

    Ray has no public call for it (ray-project/ray#28089). The job's metadata have it in the driver
    and in every worker; the environment has it reliably only in the driver.
    """
    try:
        metadata = ray._private.worker.global_worker.core_worker.get_job_config().metadata
        return str(metadata["job_submission_id"]) if "job_submission_id" in metadata else None
    except ours(AttributeError):  # a Ray with other internals, or Ray Client, where this process is no worker
        pass
    try:
        return str(json.loads(environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"])
    except ours(ValueError, KeyError, TypeError):  # not submitted, or not the description of a job
        return None
