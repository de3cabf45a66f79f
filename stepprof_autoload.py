"""The functions that entry points of stepprof name: frameworks call them, stepprof attaches itself.

A framework calls them in every process, also in jobs that do not use stepprof. So this module
imports `os` alone and is outside the package, whose import takes 10 to 25 ms. Without a variable
that asks for stepprof it reads the environment and returns.
"""

import os

VARIABLES = (
    "STEPPROF_CONFIG",
    "STEPPROF_STEPS",
    "STEPPROF_RANKS",
    "STEPPROF_BACKEND",
    "STEPPROF_OUTPUT_DIR",
    "STEPPROF_FROM",
)
"""Any of them switches the adapters on."""
OFF = ("0", "false", "off", "no")
"""Values of $STEPPROF that switch everything off."""


FRAMEWORKS = (
    "accelerate",
    "areal",
    "lightning",
    "lightning_fabric",
    "miles",
    "mindspeed_rl",
    "nemo_rl",
    "openrlhf",
    "pytorch_lightning",
    "ray",
    "rlinf",
    "roll",
    "skyrl",
    "slime",
    "torchtitan",
    "transformers",
    "trl",
    "verl",
    "vllm",
)
"""Packages that have an adapter. The import of the first one of them loads the adapters."""

RAY_WORKER = "RAY_RAYLET_PID"
"""A variable of each worker of Ray. A worker calls no `ray.init`, so its import of Ray loads no adapter."""


def wanted(*, asked: bool = False) -> bool:
    """Return whether the environment asks for stepprof in this process; `asked`: the job asks in another way."""
    environ = os.environ
    if environ.get("STEPPROF", "").strip().lower() in OFF:
        return False
    return asked or any(environ.get(name) for name in VARIABLES)


def activate(*, asked: bool = False) -> None:
    """Attach an adapter to each supported framework that this process has imported or will import."""
    if wanted(asked=asked):
        try:
            from stepprof.untraced import untraced

            untraced(_activate_all)
        except Exception as error:  # noqa: BLE001 - the job continues without stepprof
            _complain(error)


def _activate_all() -> None:
    from stepprof.integrations.activation import activate_all

    activate_all()


def activate_later() -> None:
    """Do that when the first framework is imported: a process without one is not delayed by 0.3 s."""
    if wanted():
        import sys

        if not any(isinstance(each, _FirstFramework) for each in sys.meta_path):
            sys.meta_path.insert(0, _FirstFramework())


class _FirstFramework:
    """A finder that finds nothing: it only observes which module is about to be imported."""

    is_done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Load the adapters before the first framework, which other finders then find."""
        if not self.is_done and name in FRAMEWORKS and not (name == "ray" and RAY_WORKER in os.environ):
            self.is_done = True
            activate()


def lightning_callbacks() -> "list[object]":
    """Return the callbacks of each `lightning.pytorch.Trainer`."""
    return _callbacks("trainer_callbacks", "lightning.pytorch")


def pytorch_lightning_callbacks() -> "list[object]":
    """Return the callbacks of each `pytorch_lightning.Trainer`."""
    return _callbacks("trainer_callbacks", "pytorch_lightning")


def fabric_callbacks() -> "list[object]":
    """Return the callbacks of each `lightning.fabric.Fabric`."""
    return _callbacks("fabric_callbacks", "lightning.fabric")


def lightning_fabric_callbacks() -> "list[object]":
    """Return the callbacks of each `lightning_fabric.Fabric`."""
    return _callbacks("fabric_callbacks", "lightning_fabric")


def _callbacks(function: str, package: str) -> "list[object]":
    if not wanted():
        return []
    try:
        from stepprof.untraced import untraced

        return untraced(lambda: _made(function, package))
    except Exception as error:  # noqa: BLE001 - the job continues without stepprof
        _complain(error)
        return []


def _made(function: str, package: str) -> "list[object]":
    from stepprof.integrations import lightning

    return list(getattr(lightning, function)(package))


def _complain(error: Exception) -> None:
    """Report once on stderr why no adapter is attached: stepprof's own log may be unavailable."""
    import sys

    if not getattr(_complain, "done", False):
        _complain.done = True  # type: ignore[attr-defined]
        sys.stderr.write(f"stepprof: no adapter is attached: {type(error).__name__}: {error}\n")
