"""Read the settings of a follower: from a configuration file, and never from the run, which is data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from stepprof.config.config import Config
from stepprof.config.loaders import CONFIG_VARIABLE
from stepprof.config.options.otel import OtelOptions
from stepprof.errors import ConfigError
from stepprof.follow.otel import missing_for_sending
from stepprof.follow.upload import missing


def settings(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a follower. The run directory is not read for it: a run is data.

    Args:
        file: the configuration file; None: that of $STEPPROF_CONFIG.
        environ: the environment.

    Raises:
        ConfigError: there is none, it asks for nothing, or it asks for what this machine lacks.
    """
    path = file or environ.get(CONFIG_VARIABLE)
    if not path:
        raise ConfigError(
            f"no configuration: pass --config FILE or set ${CONFIG_VARIABLE}; the run directory is not read for it"
        )
    config = Config.from_toml(path)
    if not config.follow_keys:
        raise ConfigError(
            f"{path}: nothing to do: set on_complete, upload, keep_steps, keep_bytes, watch.enabled or otel.enabled"
        )
    problem = None if config.upload is None else missing(config.upload)
    if problem is not None:
        raise ConfigError(f"{path}: upload: {problem}")
    if isinstance(config.otel, OtelOptions) and config.otel.enabled:
        problem = missing_for_sending(config.otel)
        if problem is not None:
            raise ConfigError(f"{path}: otel: {problem}")
    if config.on_complete is not None and shutil.which(config.on_complete[0]) is None:
        raise ConfigError(
            f"{path}: on_complete: there is no command {config.on_complete[0]} here, or it may not be run"
        )
    return config
