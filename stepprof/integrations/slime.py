"""The adapters of slime and miles: the driver's loop, which starts the session and attaches the other processes, and the timers of all.

The loop is a script, so its steps are recognised by its calls: methods of the rollout manager's
handle and of the groups of ranks. slime's loop waits for a training by ``ray.get``; miles' awaits
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stepprof.integrations.adapter import Adapter
from stepprof.integrations.hooks import Hook, around, hooked
from stepprof.integrations.slime_job import CALLS, METHODS, SlimeJob
from stepprof.integrations.training_loop import close_timer, open_timer
from stepprof.untraced import Reference, untraced
from stepprof_autoload import activate

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepprof.integrations.patches import Patches

ACROSS_STEPS = "train_wait"
"""The timer that runs while no other one does, from one step into the next."""

TIMED = "_stepprof_timers"


@dataclass(frozen=True)
class Package:
    """The names of one package, slime or miles.

    Args:
        name: of the package.
        distribution: its name on PyPI.
        tested: the tested versions.
        timer: the class of the timers.
        created: the method of a group after which its actors answer.
        train: the method that begins to train.
        parameters: of `train`.
        handles: the attribute of a group that lists its actors.
        waits: the function that waits for a training; None: the training is a coroutine.
    """

    name: str
    distribution: str
    tested: str
    timer: str
    created: str
    train: str
    parameters: tuple[str, ...]
    handles: str
    waits: str | None

    @property
    def group(self) -> str:
        """Return the class of a group of ranks."""
        return f"{self.name}.ray.actor_group:RayTrainGroup"

    @property
    def manager(self) -> str:
        """Return the function that creates the rollout manager."""
        return f"{self.name}.ray.placement_group:create_rollout_manager"


PACKAGES = (
    Package(
        name="slime",
        distribution="slime",
        tested="~=0.3.1",
        timer="slime.observability.timer:Timer",
        created="create",
        train="async_train",
        parameters=("rollout_id", "rollout_data_ref", "external_data"),
        handles="_actor_handlers",
        waits="ray:get",
    ),
    Package(
        name="miles",
        distribution="miles-rl",
        tested="~=0.0.2",
        timer="miles.utils.timer:Timer",
        created="init",
        train="train",
        parameters=("rollout_id",),
        handles="_actor_handles",
        waits=None,
    ),
)


_jobs: list[SlimeJob] = []
"""The job of this process, from its rollout manager on."""


class NotifyingCall:
    """A method of the rollout manager's handle that reports each call to the job first.

    Args:
        method: Ray's.
        notify: gets the arguments of the call.
    """

    def __init__(self, method: Any, notify: Callable[..., object]) -> None:
        self._method = method
        self._notify = notify

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method as Ray does."""
        self._notify(args, kwargs)
        return self._method.remote(*args, **kwargs)


def _manager_is_created(
    patches: Patches, package: Package, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    manager = result[0]
    job = SlimeJob(package.name, package.handles, args[0] if args else kwargs["args"], manager)
    for name in CALLS:
        notify = partial(patches.guarded, f"{package.name}.{name}", job.calls, name)
        setattr(manager, name, NotifyingCall(getattr(manager, name), notify))
    _jobs[:] = [job]


def _group_is_created(group: Any, *_: object) -> Any:
    return group


def _group_answers(group: Any, error: BaseException | None) -> None:
    for job in _jobs if group is not None and error is None else ():
        if group not in job.groups:
            job.groups.append(group)
        for actor in getattr(group, job.handles):
            actor.__ray_call__.remote(Reference(_activate))


def _activate(_: object) -> None:
    """Attach the adapters in a rank, which may not have inherited the environment of the job."""
    untraced(lambda: activate(asked=True))


def _train_begins(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for job in _jobs:
        job.train_begins(group, args[0] if args else kwargs["rollout_id"])


def _train_ends(_: object, error: BaseException | None) -> None:
    for job in _jobs:
        job.train_ends(error)


def _wait_begins(_: object, args: tuple[Any, ...], __: dict[str, Any]) -> list[SlimeJob]:
    """Return the jobs whose training this wait is for: each rank has a result."""
    return [job for job in _jobs if job.is_training and args and isinstance(args[0], list)]


def _wait_ends(jobs: list[SlimeJob] | None, error: BaseException | None) -> None:
    for job in jobs or ():
        job.train_ends(error, all_groups=True)


def _method_begins(name: str, *_: object) -> list[tuple[SlimeJob, Any]]:
    return [(job, job.method_begins(name)) for job in _jobs]


def _method_ends(token: list[tuple[SlimeJob, Any]] | None, error: BaseException | None) -> None:
    for job, nested in token or ():
        job.method_ends(nested, error)


# -- timers of every process


def _timer_begins(timer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = args[0] if args else kwargs["name"]
    if name != ACROSS_STEPS:
        timer.__dict__.setdefault(TIMED, {})[name] = open_timer(name)


def _timer_ends(timer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    close_timer(timer.__dict__.get(TIMED, {}).pop(args[0] if args else kwargs["name"], None))


def _adapters(package: Package) -> tuple[Adapter, Adapter]:
    group, waits = package.group, package.waits
    train_ends = _train_ends if waits is None else None

    def watch_manager(patches: Patches) -> None:
        patches.result(package.manager, partial(_manager_is_created, patches, package))

    driver = [
        Hook(package.manager, ("args", "pg"), watch_manager),
        around(f"{group}.{package.created}", _group_is_created, _group_answers),
        *(around(f"{group}.{name}", partial(_method_begins, name), _method_ends) for name in METHODS),
        around(f"{group}.{package.train}", _train_begins, train_ends, needs=package.parameters),
        *([] if waits is None else [around(waits, _wait_begins, _wait_ends)]),
    ]
    timers = [
        around(f"{package.timer}.start", _timer_begins, needs=("name",), timer=True),
        around(f"{package.timer}.end", _timer_ends, needs=("name",), timer=True),
    ]
    made = partial(hooked, distributions=(package.distribution,), tested=package.tested)
    return (
        made(package.name, package.manager, driver, {f"{group}.__init__": ("role",)}),
        made(f"{package.name}.timer", package.timer, timers),
    )


ADAPTERS = tuple(adapter for package in PACKAGES for adapter in _adapters(package))
