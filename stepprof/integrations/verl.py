"""The adapters of verl: the process of its V1 trainer, which starts the session and attaches the other processes.

What only this module knows: prompts are sent before the timer "gen" begins, so that the window of the rollout begins in
``prepare_step``; verl's timers all go through ``_timer``; and no V1 trainer overrides ``fit``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.config.loaders import overrides, plain
from stepprof.instrument.context import cell
from stepprof.integrations import verl_processes, verl_profiler
from stepprof.integrations.training_loop import close_timer, ensure_session, open_timer
from stepprof.integrations.verl_processes import adapter
from stepprof.log import logger
from stepprof.recording.session import current_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepprof.instrument.step import StepWindow
    from stepprof.integrations.patches import Patches

__all__ = ["ADAPTERS", "ROLES"]

ROLES = {
    "gen": "rollout",
    "reward": "reward",
    "old_log_prob": "actor",
    "ref": "ref",
    "values": "critic",
    "adv": "advantage",
    "update_critic": "critic",
    "update_actor": "actor",
    "update_weights": "weight_sync",
}
"""Timers of the trainer that open the window of a role; each is also a region, as all others are."""

GROUPS = {
    "actor_rollout_wg": ("actor", "weight_sync"),
    "ref_policy_wg": ("ref",),
    "critic_wg": ("critic",),
}
"""The trainer's groups of ranks, with the roles that they play; several names may stand for the same processes."""

TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
TIMER = "verl.utils.profiler.performance:_timer"

OTHER_PROFILER = "global_profiler.steps selects them too; leave it out, or set STEPPROF_FROM=framework to record them with stepprof alone"


class Driver:
    """The windows of the process that trains: of the step, of its phases, and of the rollout, which begins before its timer.

    Args:
        trainer: verl's trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._rollout: StepWindow | None = None

    def begin_rollout(self) -> None:
        """Open the window of the rollout, unless it is open."""
        if self._rollout is None:
            self._rollout = self._open("rollout")

    def end_rollout(self, error: BaseException | None = None) -> None:
        """Close the window of the rollout, if it is open."""
        window, self._rollout = self._rollout, None
        if window is not None:
            window.stop(error)

    def begin(self, timer: str) -> StepWindow | None:
        """Open the window that belongs to a timer, if one does."""
        if timer == "step":
            return self._open(None)
        role = ROLES.get(timer)
        if role == "rollout":
            self.begin_rollout()
            return None
        return None if role is None else self._open(role)

    def end(self, timer: str, window: StepWindow | None, error: BaseException | None) -> None:
        """Close the window that belongs to a timer."""
        if timer in ("gen", "step"):  # a step that failed before its generation has left the rollout open
            self.end_rollout(error)
        if window is not None:
            window.stop(error)

    def _open(self, role: str | None) -> StepWindow:
        return stepprof.profile_step(self._trainer.global_steps, role).start()


_drivers: list[Driver] = []
"""The driver of this process, while its trainer fits."""


def _fit_begins(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    refused = [f"{name} ({entry['status']})" for name, entry in _refused()]
    if refused:
        logger.warning("adapter.not_started", name="verl", reason=f"not attached: {', '.join(refused)}")
        return False
    asked = verl_profiler.is_asked_for()
    given = verl_profiler.as_configuration(trainer.config) if asked else trainer.config.get("stepprof")
    if not ensure_session("verl", _with_overrides(given), "driver"):
        return False
    try:
        _attach_processes(trainer, args[0] if args else kwargs["agent_loop_manager"])
    except BaseException:
        stepprof.shutdown()
        raise
    _settle_own_profiler(trainer.config.global_profiler, take_over=asked)
    _drivers.append(Driver(trainer))
    return True


def _with_overrides(given: Any) -> Any:
    """Return the configuration that the job gives with the variables of the environment on top; None if it gives none."""
    if given is None:
        return None
    return {**plain(given), **{key: value for _, key, value in overrides(os.environ)}}  # type: ignore[dict-item]


def _fit_ends(begun: bool | None, error: BaseException | None) -> None:
    if begun:
        _drivers.clear()
        stepprof.shutdown()


def _settle_own_profiler(own: Any, *, take_over: bool) -> None:
    """Leave verl's own profiler off if stepprof takes its place, else report the steps that both would record."""
    session = current_session()
    if session is None or not own.steps:
        return
    if take_over:
        own.steps = None
        cell.adapters["verl"] = {**cell.adapters["verl"], "configuration": "global_profiler"}
        session.note_adapters()
        return
    both = [step for step in own.steps if step in session.config.policy(None).steps]
    if own.tool is not None and both:
        logger.warning("adapter.other_profiler", name="verl", steps=both, reason=OTHER_PROFILER)


def _refused() -> Iterator[tuple[str, Any]]:
    """Yield what keeps this process from recording a step completely."""
    for each in ADAPTERS:
        entry = cell.adapters.get(each.name)
        if entry is not None and entry["status"] not in ("attached", "untested"):
            yield each.name, entry


def _attach_processes(trainer: Any, agent_loops: Any) -> None:
    """Attach the ranks, the engines, the agent loops and the reward workers of a trainer."""
    for workers, roles in _ranks(trainer):
        stepprof.attach(workers, role=roles, kind="rank")
    find = "engine" if trainer.config.actor_rollout_ref.rollout.name == "vllm" else None
    stepprof.attach(lambda: _servers(trainer), role="rollout", kind="engine", find=find)
    loops = getattr(agent_loops, "agent_loop_workers", None)  # a job's own manager may have none
    if loops:
        stepprof.attach(list(loops), role="rollout", kind="spans", name="agent-loop")
    rewards = trainer.get_reward_handles()
    if rewards:
        stepprof.attach(list(rewards), role=["rollout", "reward"], kind="spans", name="reward-loop")


def _ranks(trainer: Any) -> list[tuple[list[Any], list[str]]]:
    """Return the actors of each group of ranks with the roles that they play; most often one group plays all."""
    found: dict[tuple[object, ...], tuple[list[Any], list[str]]] = {}
    for name, roles in GROUPS.items():
        group = getattr(trainer, name, None)
        workers = [] if group is None else list(group.workers)
        if workers:
            key = tuple(worker._actor_id for worker in workers)
            found.setdefault(key, (workers, []))[1].extend(roles)
    return list(found.values())


def _servers(trainer: Any) -> list[Any]:
    """Return the actors that hold the engines, as they are now: of a replica on several nodes the first."""
    managers = trainer._rollout_server_managers()
    replicas = (replica for manager in managers for replica in manager.get_replicas())
    return [server for replica in replicas for server in replica.servers[:1]]


def _prepare_begins(*_: object) -> Any:
    for driver in _drivers:
        driver.begin_rollout()
    return open_timer("prepare_step")


def _attach_trainer(patches: Patches) -> None:
    patches.around(f"{TRAINER}.fit", _fit_begins, _fit_ends)
    patches.around(f"{TRAINER}.prepare_step", _prepare_begins, close_timer)


# -- timers and regions


def _timer_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = args[0] if args else kwargs["name"]
    windows = [(driver, driver.begin(name)) for driver in _drivers]
    return name, windows, None if name == "step" and windows else open_timer(name)


def _timer_ends(token: Any, error: BaseException | None) -> None:
    if token is None:
        return
    name, windows, region = token
    close_timer(region, error)
    for driver, window in windows:
        driver.end(name, window, error)


def _attach_timers(patches: Patches) -> None:
    patches.around(TIMER, _timer_begins, _timer_ends)


ADAPTERS = (
    *verl_processes.ADAPTERS,
    adapter("verl.timers", TIMER, _attach_timers, {TIMER: ("name", "timing_raw")}),
    adapter(
        "verl",
        TRAINER,
        _attach_trainer,
        {
            f"{TRAINER}.fit": ("agent_loop_manager",),
            f"{TRAINER}.prepare_step": (),
            f"{TRAINER}.get_reward_handles": (),
            f"{TRAINER}._rollout_server_managers": (),
            "verl.workers.rollout.llm_server:LLMServerManager.get_replicas": (),
            "verl.single_controller.ray:RayWorkerGroup.workers": (),
        },
    ),
)
