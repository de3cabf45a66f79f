"""The adapters of verl: the process of its trainer, which starts the session and attaches the other processes.

What only this module knows: a V1 trainer sends its prompts before the timer "gen" begins, so that the window of the rollout begins
in ``prepare_step``; verl's timers all go through ``_timer``; no V1 trainer overrides ``fit``, and each trainer on V0's base does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.integrations import own_profiler, verl_processes, verl_profiler, verl_requests
from stepprof.integrations.activation import note_model
from stepprof.integrations.hooks import Hook, around
from stepprof.integrations.training_loop import (
    EVAL,
    close_timer,
    is_incomplete,
    open_timer,
    start_session,
)
from stepprof.integrations.verl_actors import ACTORS, attach_actors
from stepprof.integrations.verl_processes import of_verl

if TYPE_CHECKING:
    from stepprof.instrument.step import StepWindow

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
    "timing_s/param_sync": "weight_sync",
    "testing": EVAL,
}
"""Timers of the trainer that open the window of a role; each is also a region, as all others are."""

TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
V0_TRAINER = "verl.trainer.ppo.ray_trainer:RayPPOTrainer"
ONE_STEP_OFF = "verl.experimental.one_step_off_policy.ray_trainer:OneStepOffRayTrainer"
SEPARATE = "verl.experimental.separation.ray_trainer:SeparateRayPPOTrainer"
TIMER = "verl.utils.profiler.performance:_timer"


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

_not_begun: list[Any] = []
"""A fully asynchronous trainer without a session, which is not asked again at each step."""


def _fit_begins(name: str, trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Start the session of a trainer's process and attach the other processes; return whether it did."""
    if is_incomplete(name, [each for each in ADAPTERS if each.name == name or each.name not in TRAINERS]):
        return False
    asked = own_profiler.is_asked_for()
    given = verl_profiler.as_configuration(trainer.config) if asked else trainer.config.get("stepprof")
    agent_loops = args[0] if args else kwargs.get("agent_loop_manager")
    config = own_profiler.with_overrides(given)
    if not start_session("verl", partial(attach_actors, trainer, agent_loops), config):
        return False
    _settle_own_profiler(name, trainer.config.global_profiler, take_over=asked)
    note_model(name, _model_of(trainer.config))
    _drivers.append(Driver(trainer))
    return True


def _model_of(config: Any) -> object:
    """Return the path of the trained model in verl's configuration; None: it has none."""
    for key in ("actor_rollout_ref", "model", "path"):
        config = config.get(key) if hasattr(config, "get") else None
    return config


def _fit_ends(begun: bool | None, error: BaseException | None) -> None:
    if begun:
        _drivers.clear()
        stepprof.shutdown()


def _settle_own_profiler(name: str, own: Any, *, take_over: bool) -> None:
    """Leave verl's own profiler off if stepprof takes its place, else report the steps that both would record."""
    if own.steps and (take_over or own.tool is not None):
        own_profiler.settle(name, "global_profiler.steps", own.steps, take_over=take_over)
    if take_over:
        own.steps = None


def _prepare_begins(*_: object) -> Any:
    for driver in _drivers:
        driver.begin_rollout()
    return open_timer("prepare_step")


def _separate_step_begins(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Start the session in the actor of a fully asynchronous trainer: Ray has pickled the trainer's
    own methods, so this one of its base class is patched.
    """
    is_new = not _drivers and trainer not in _not_begun and hasattr(trainer, "rollouter")
    if is_new and not _fit_begins("verl.fully_async", trainer, (), {}):
        _not_begun.append(trainer)


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
    if (
        name == "step" and windows and error is not None
    ):  # no trainer goes on; a fully asynchronous one ends so
        _fit_ends(True, error)


TRAINERS = {
    "verl": TRAINER,
    "verl.v0": V0_TRAINER,
    "verl.one_step_off": ONE_STEP_OFF,
    "verl.fully_async": SEPARATE,
}
"""The adapters of the trainers; a process has one trainer."""


def _fit(name: str) -> Hook:
    target = f"{TRAINERS[name]}.fit"
    needs = ("agent_loop_manager",) if name == "verl" else ()
    return around(target, partial(_fit_begins, name), _fit_ends, needs=needs)


ADAPTERS = (
    *verl_processes.ADAPTERS,
    *verl_requests.ADAPTERS,
    of_verl("verl.timers", TIMER, [around(TIMER, _timer_begins, _timer_ends, needs=("name", "timing_raw"))]),
    of_verl(
        "verl",
        TRAINER,
        [_fit("verl"), around(f"{TRAINER}.prepare_step", _prepare_begins, close_timer)],
        {f"{TRAINER}._rollout_server_managers": (), **ACTORS},
    ),
    *(of_verl(name, TRAINERS[name], [_fit(name)], ACTORS) for name in ("verl.v0", "verl.one_step_off")),
    of_verl(
        "verl.fully_async",
        SEPARATE,
        [around(f"{SEPARATE}._fit_start_profile", _separate_step_begins)],
        ACTORS,
    ),
)
