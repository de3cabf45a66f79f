"""The adapter of Ray: every worker of the job gets the switches of stepprof, also in a cluster that runs already.

The processes of such a cluster inherit nothing from the job. So the job's runtime environment gets the variables;
below `stepprof run` also that of `stepprof.pth`, which attaches the adapters in each worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepprof.config.config import load
from stepprof.config.loaders import CONFIG_VARIABLE, VARIABLES
from stepprof.integrations.hooks import hooked, result
from stepprof.run.announced import VARIABLE as ANNOUNCE
from stepprof.run.output_root import output_root

RUNTIME_ENVIRONMENT = "ray._private.worker:_maybe_modify_runtime_env"
"""Called by `ray.init`. It also applies the job's own `RAY_RUNTIME_ENV_HOOK` and that of `uv run`, because Ray knows only one."""
AUTOLOAD = "STEPPROF_AUTOLOAD"
"""The variable of `stepprof.pth`, which `stepprof run` sets."""


def with_variables(runtime_env: Any, _: tuple[Any, ...], __: dict[str, Any]) -> dict[str, Any]:
    """Return the runtime environment of a job with stepprof's variables; the job's own values win.
    It cannot fail on a node without stepprof: a missing folder is no error.
    """
    environment = dict(runtime_env or {})
    theirs = dict(environment.get("env_vars") or {})
    ours = {name: os.environ[name] for name in (*VARIABLES, AUTOLOAD, ANNOUNCE) if os.environ.get(name)}
    ours["STEPPROF_OUTPUT_DIR"] = str(
        output_root(load().output_dir)
    )  # workers have other working directories
    if CONFIG_VARIABLE in ours:
        ours[CONFIG_VARIABLE] = str(Path(ours[CONFIG_VARIABLE]).absolute())
    environment["env_vars"] = {**ours, **theirs}
    return environment


ADAPTERS = (
    hooked(
        "ray",
        RUNTIME_ENVIRONMENT,
        [result(RUNTIME_ENVIRONMENT, with_variables, needs=("runtime_env",))],
        distributions=("ray",),
        tested="~=2.60.0",
    ),
)
