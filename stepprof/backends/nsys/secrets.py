"""Warn about secrets in nsys reports: nsys writes the environment of the recorded processes into
them, unless an option forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepprof.backends.nsys.process import Launch
from stepprof.config.options.nsys import NsysOptions
from stepprof.log import logger
from stepprof.redaction.secret_places import is_secret_variable, without_keys

_logged: set[tuple[str, ...]] = set()


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that look like secrets; never their values.

    >>> secrets({"HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "MAX_TOKENS": "8", "HOME": "/root"})
    ['AWS_SECRET_ACCESS_KEY', 'HF_TOKEN']
    """
    return sorted(
        name
        for name, value in environ.items()
        if value and (is_secret_variable(name, value) or without_keys(value) != value)
    )


def warn_of_secrets(options: NsysOptions, launch: Launch, environ: Mapping[str, str]) -> None:
    """Log once which variables of a process under nsys will be in its reports."""
    names = tuple(secrets(environ))
    if options.keep_environment or launch.leaves_environment_out or not names or names in _logged:
        return
    _logged.add(names)
    logger.warning(
        "nsys.environment_exposed",
        reason=f"{', '.join(names)} would be in them; unset these variables, or start nsys with --discard-environment=true "
        "if it has that option, as nsys_command and ray_runtime_env do",
    )
