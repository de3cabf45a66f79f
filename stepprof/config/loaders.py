"""Read configurations: a TOML file, an OmegaConf node, the environment.

Each becomes a plain mapping or string, and errors name the source. This module knows the names of
the environment variables and of the keys, but not what a key means.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepprof.errors import ConfigError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SWITCH = "STEPPROF"
CONFIG_VARIABLE = "STEPPROF_CONFIG"
RUN_ID_VARIABLE = "STEPPROF_RUN_ID"
FROM_VARIABLE = "STEPPROF_FROM"
"""Read by framework adapters: "framework" records what the framework's own profiler is configured for."""
KEY_OF_VARIABLE = {
    "STEPPROF_STEPS": "steps",
    "STEPPROF_RANKS": "ranks",
    "STEPPROF_BACKEND": "backend",
    "STEPPROF_OUTPUT_DIR": "output_dir",
}
VARIABLES = (SWITCH, CONFIG_VARIABLE, *KEY_OF_VARIABLE, RUN_ID_VARIABLE, FROM_VARIABLE)
FACTS = (
    "STEPPROF_RUN",
    "STEPPROF_STEP",
    "STEPPROF_STEP_DIR",
    "STEPPROF_RECORDED_STEPS",
    "STEPPROF_STATUS",
    "STEPPROF_BYTES",
    "STEPPROF_UPLOADED_TO",
)
"""Variables that the ``on_complete`` command gets in addition to the run's id. They set no key of a
configuration.
"""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: it is missing (the nearest file is named), unreadable, or no TOML (with the line).
    """
    try:
        text = path.read_bytes().decode()
        return tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file{_nearest_file(path)}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: must be UTF-8, as TOML requires") from error
    except tomllib.TOMLDecodeError as error:
        matched = re.search(r"at line (\d+)", str(error))
        line = int(matched[1]) if matched else len(text.splitlines()) or 1
        raise ConfigError(f"{path}:{line}: not valid TOML: {error}") from error
    except ValueError as error:  # a NUL character in the path
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def plain(mapping: object) -> object:
    """Return an OmegaConf node as plain data with its interpolations resolved, and anything else
    unchanged.
    """
    omegaconf: Any = sys.modules.get("omegaconf")  # a process that has a node has loaded it
    if omegaconf is None or not omegaconf.OmegaConf.is_config(mapping):
        return mapping
    try:
        content = omegaconf.OmegaConf.to_container(mapping, resolve=True, throw_on_missing=True)
        raw = omegaconf.OmegaConf.to_container(mapping, resolve=False)
    except omegaconf.errors.MissingMandatoryValue as error:
        raise ConfigError(f'{error.full_key} = "???": has no value; give one, or remove the key') from error
    except omegaconf.errors.OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(
            f"{error.full_key or 'the OmegaConf node'}: cannot be resolved: {problem}"
        ) from error
    return _decoded(content, raw)


_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_TEXTS = frozenset({"output_dir", "on_complete", "upload"})
"""Keys whose values are text, also if it looks like a number."""


def _decoded(value: Any, raw: Any) -> Any:
    """Return a resolved value; a number or a truth value that an interpolation has as text, such as
    ``${oc.env:SECONDS}``, is one.
    """
    if isinstance(value, dict):
        # a table may itself be an interpolation: what is below it has no raw form here
        below = raw if isinstance(raw, dict) else {}
        return {
            key: item if key in _TEXTS else _decoded(item, below.get(key, item if below else raw))
            for key, item in value.items()
        }
    if not (isinstance(value, str) and isinstance(raw, str) and "${" in raw):
        return value
    text = value.strip().lower()
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return _WORDS.get(text, value)


def switched_off(environ: Mapping[str, str]) -> bool:
    """Return whether $STEPPROF switches everything off."""
    value = environ.get(SWITCH, "").strip().lower()
    if value in ("0", "false", "off", "no"):
        return True
    if value in ("", "1", "true", "on", "yes"):
        return False
    raise ConfigError.at(
        f"${SWITCH}", environ[SWITCH], 'expected "0" (everything off) or "1"; did you mean "0"?'
    )


def misspelt(environ: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield an error for each variable that is nearly the name of one that sets a key."""
    # STEPPROF_STEP alone is a misspelt STEPPROF_STEPS
    known = (*VARIABLES, *FACTS) if "STEPPROF_STATUS" in environ else VARIABLES
    for variable in environ:
        if variable.startswith(SWITCH) and variable not in known:
            for close in difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0.85):
                yield ConfigError.at(
                    f"${variable}", environ[variable], f'unknown variable; did you mean "${close}"?'
                )


def overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Yield (variable, key, value) for each variable that sets a key."""
    for variable, key in KEY_OF_VARIABLE.items():
        text = environ.get(variable, "").strip()
        if text:
            yield (
                variable,
                key,
                [part.strip() for part in text.split(",")] if key == "backend" and "," in text else text,
            )


@contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before errors about its keys."""
    try:
        yield
    except ConfigError as error:
        if error.key is None and not error.parts:
            raise
        raise _relabelled(error, f"{os.fspath(path)}: {error}") from error


@contextmanager
def from_variable(variable: str, value: object, key: str | None = None) -> Iterator[None]:
    """Name the environment variable in an error about its value."""
    try:
        yield
    except ConfigError as error:
        if key is not None and error.key == key:
            raise ConfigError.at(f"${variable}", value, error.problem) from error
        raise _relabelled(error, f"${variable} = {shown(value)}: {error}") from error


def _relabelled(error: ConfigError, text: str) -> ConfigError:
    labelled = ConfigError(text)
    labelled.key, labelled.value, labelled.problem = error.key, error.value, error.problem
    return labelled


def _nearest_file(path: Path) -> str:
    try:
        there = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml")
    except OSError:
        return f", nor a folder {path.parent}"
    close = difflib.get_close_matches(path.name, there, n=1, cutoff=0.5)
    return f'; did you mean "{path.parent / close[0]}"?' if close else ""
