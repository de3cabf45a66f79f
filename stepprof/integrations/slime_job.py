"""Derive the windows of slime's and miles' loop from its calls. Between two calls the loop waits
for the result of the first one. ``train_async.py`` requests the rollout of the next step before it
trains.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler
from stepprof.integrations.training_loop import TrainingLoop, close_timer, open_timer, start_session

if TYPE_CHECKING:
    from collections.abc import Callable

EVAL = "eval"

CALLS = {
    "generate": "rollout",
    "eval": EVAL,
    **dict.fromkeys(("offload", "onload", "onload_weights", "onload_kv", "save", "dispose")),
}
"""Methods of the rollout manager that the loop calls, with the role of the wait that follows; None: a region."""

METHODS = {
    "update_weights": "weight_sync",
    **dict.fromkeys(("save_model", "onload", "offload", "clear_memory")),
}
"""Methods of a group of ranks besides its training; None: a region."""

ROLES = {"actor": ("actor", "weight_sync"), "critic": ("critic", "actor")}
"""The groups of ranks, with the roles whose windows they follow; the first names them."""


class SlimeJob:
    """The windows of the process that runs the loop. One phase is open at a time; a call of the loop ends the one before.

    Args:
        name: of the package.
        handles: the attribute of a group of ranks that lists its actors.
        args: the options of the job.
        manager: the handle of the rollout manager.
    """

    def __init__(self, name: str, handles: str, args: Any, manager: Any) -> None:
        self.loop = TrainingLoop(name)
        self.name = name
        self.handles = handles
        self.manager = manager
        self.profiler = take_over(args)
        self.groups: list[Any] = []
        self._close: Callable[[BaseException | None], None] | None = None
        self._generated: int | None = None
        self._trained: int | None = None
        self._depth = 0
        self._trainings = 0
        self._is_rollout_pending = False
        self._is_started = False

    # -- calls of the rollout manager

    def calls(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that the loop calls a method of the rollout manager."""
        if self._depth:
            return  # a part of what a group does
        self._end_phase()
        rollout = args[0] if args else kwargs.get("rollout_id", 0)
        if method in ("generate", EVAL):
            self._start(rollout)
        if method == "generate":
            self._generates(rollout)
        elif method == EVAL:
            window = self.loop.evaluation(rollout)
            self._close = partial(self.loop.end_evaluation, window)
        elif method == "dispose":
            self.end()
        else:
            self._begin_phase(method, CALLS[method])

    def _generates(self, rollout: int) -> None:
        self._is_rollout_pending = self._generated != self._trained
        self._generated = rollout
        if not self._is_rollout_pending:
            self.loop.begin(rollout + 1)
            self._begin_phase("generate", "rollout")

    # -- groups of ranks

    def train_begins(self, group: Any, rollout: int) -> None:
        """Note that a group begins to train with a rollout."""
        self._end_phase()
        self.loop.begin(rollout + 1)
        self._trained = rollout
        self._is_rollout_pending &= rollout != self._generated
        self._trainings += 1
        self._begin_phase("train", ROLES[group.role][0])

    @property
    def is_training(self) -> bool:
        """Return whether a group trains now."""
        return bool(self._trainings)

    def train_ends(self, error: BaseException | None, *, all_groups: bool = False) -> None:
        """Note that one group, or every group, has finished training."""
        self._trainings = 0 if all_groups else self._trainings - 1
        if not self._trainings:
            self._end_phase(error)
            self._wait_for_rollout()

    def method_begins(self, name: str) -> Any:
        """Open the window or region of a method of a group; return the object that closes a nested one."""
        self._depth += 1
        if self._depth > 1:
            return open_timer(name)
        self._end_phase()
        self._is_rollout_pending &= name != "update_weights"  # the loop has waited for it
        self._begin_phase(name, METHODS[name])
        return None

    def method_ends(self, nested: Any, error: BaseException | None) -> None:
        """Close the window or region of a method of a group."""
        self._depth -= 1
        if self._depth:
            close_timer(nested, error)
            return
        self._end_phase(error)
        self._wait_for_rollout()

    # -- phases

    def _wait_for_rollout(self) -> None:
        if self._is_rollout_pending:
            self._begin_phase("generate", "rollout")

    def _begin_phase(self, name: str, role: str | None) -> None:
        opened = open_timer(name, role)
        self._close = lambda error: close_timer(opened, error)

    def _end_phase(self, error: BaseException | None = None) -> None:
        close, self._close = self._close, None
        if close is not None:
            close(error)

    # -- the session

    def _start(self, first: int) -> None:
        """Start the session before the first rollout, when every process answers."""
        if self._is_started:
            return
        self._is_started = True
        given = None if self.profiler is None else self.profiler.as_configuration(first)
        config = own_profiler.with_overrides(given)
        if start_session(self.name, self._attach_processes, config) and self.profiler is not None:
            self.profiler.settle(self.name, first)

    def _attach_processes(self) -> None:
        import ray

        for group in self.groups:
            actors = partial(getattr, group, self.handles)
            stepprof.attach(lambda actors=actors: list(actors()), role=ROLES[group.role], kind="rank")
        engines = engines_in(ray.get(self.manager.get_updatable_engines_and_lock.remote()))
        if engines:
            stepprof.attach(engines, role="rollout", kind="engine", find=url)

    def end(self) -> None:
        """End the session while the other processes still answer."""
        self._end_phase()
        self.loop.end()
        stepprof.shutdown()


def engines_in(answer: Any) -> list[Any]:
    """Return the engines in what `get_updatable_engines_and_lock` returns: a tuple, and after miles 0.0.2 an object."""
    return list(answer.rollout_engines if hasattr(answer, "rollout_engines") else answer[0])


def url(engine: Any) -> str:
    """Return the URL of the SGLang server that an actor has started."""
    return f"http://{engine.server_host}:{engine.server_port}"


TARGET = "train_overall"
"""The profiler target of whole trainings. The others record micro-batches."""

OPTION = "--profile-step-start"


class OwnProfiler:
    """The steps that the framework's own profiler is configured for.

    It counts trainings from 0 since the job began. ``--profile-step-end`` is not recorded, and the
    training before ``--profile-step-start`` is its warm-up.

    Args:
        args: the options of the job.
        is_replaced: stepprof records them instead.
    """

    def __init__(self, args: Any, *, is_replaced: bool) -> None:
        self._begin = args.profile_step_start
        self._end = args.profile_step_end
        self._is_replaced = is_replaced

    def as_configuration(self, first: int) -> dict[str, Any] | None:
        """Return the configuration of stepprof, or None if it does not replace the framework's profiler.

        Args:
            first: the number of the job's first rollout.
        """
        if not self._is_replaced:
            return None
        return {
            "steps": [first + 1 + each for each in range(self._begin, self._end)],
            "join_steps": True,
            "backend": "torch",
            "ranks": "all",
            "torch": {"record_shapes": True, "with_stack": True, "with_flops": True},
            "roles": {"rollout": {"enabled": False}},
        }

    def settle(self, adapter: str, first: int) -> None:
        """Note which configuration applies, or report the steps that both profilers record."""
        begin = self._begin if self._is_replaced else max(self._begin - 1, 0)
        steps = [first + 1 + each for each in range(begin, self._end)]
        own_profiler.settle(adapter, OPTION, steps, take_over=self._is_replaced)


def take_over(args: Any) -> OwnProfiler | None:
    """Return the framework's own profiler, which is switched off if stepprof replaces it; None: it
    is not configured.

    Raises:
        ConfigError: stepprof should replace it, but it records no training.
    """
    is_replaced = own_profiler.is_asked_for()
    is_configured = args.use_pytorch_profiler and TARGET in args.profile_target
    if not is_replaced:
        return OwnProfiler(args, is_replaced=False) if is_configured else None
    if not is_configured:
        option, value = (
            ("--profile-target", args.profile_target)
            if args.use_pytorch_profiler
            else ("--use-pytorch-profiler", False)
        )
        raise ConfigError.at(
            option, value, f"must be set, with --profile-target {TARGET}, for STEPPROF_FROM=framework"
        )
    if args.profile_step_end <= args.profile_step_start:
        raise ConfigError.at(
            "--profile-step-end", args.profile_step_end, f"must be above {OPTION} ({args.profile_step_start})"
        )
    args.use_pytorch_profiler = False
    return OwnProfiler(args, is_replaced=True)
