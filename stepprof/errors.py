"""Every exception that stepprof raises: one class for each thing that a caller can catch.

Each also derives from the matching built-in exception, so that code that does not know stepprof
handles it sensibly. The message says what happened, to what, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BackendError", "Busy", "ConfigError", "EngineError", "StateError", "StepprofError"]


class StepprofError(Exception):
    """Base class of every exception of stepprof."""


class ConfigError(StepprofError, ValueError):
    """A wrong configuration: an unknown key, a wrong type or value, an impossible rank.

    The message names the key, the value and a suggestion.

    >>> raise ConfigError.at("torch.with_stack", "yes", "expected true or false; did you mean true?")
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: torch.with_stack = "yes": expected true or false; did you mean true?
    """

    key: str | None = None
    """The dotted key that is wrong, if the error is about one."""
    value: object = None
    """The value of that key."""
    problem: str = ""
    """What is wrong with it, with a suggestion."""
    parts: tuple[ConfigError, ...] = ()
    """The errors of several keys; empty: it is about one mistake."""

    @classmethod
    def of_all(cls, errors: Sequence[ConfigError]) -> ConfigError:
        """Return one error for all mistakes of a configuration: the only one, or one whose message has them all."""
        if len(errors) == 1:
            return errors[0]
        error = cls("; also ".join(map(str, errors)))
        error.parts = tuple(errors)
        return error

    @classmethod
    def at(cls, key: str, value: object, problem: str) -> ConfigError:
        """Return the error for a ``key`` with this ``value`` and ``problem``."""
        error = cls(f"{key} = {shown(value)}: {problem}")
        error.key, error.value, error.problem = key, value, problem
        return error

    def under(self, table: str) -> ConfigError:
        """Return the same error with its key inside ``table``, for code that checks a table without knowing its place."""
        if self.parts:
            return ConfigError.of_all([each.under(table) for each in self.parts])
        return ConfigError.at(f"{table}.{self.key}" if self.key else table, self.value, self.problem)


class StateError(StepprofError, RuntimeError):
    """The call is not possible in the present state. The message names the state and its holder."""


class BackendError(StepprofError, RuntimeError):
    """A backend cannot record here, or failed while it recorded."""


class Busy(BackendError):
    """Another profiler runs in this process, or another process records the device; it is left alone."""


class EngineError(StepprofError, RuntimeError):
    """An attached engine or rank refused, failed, or could not be reached."""


def shown(value: object) -> str:
    """Return `value` as a configuration file would have it, in a length fit for a message.

    >>> shown("Torch"), shown(True), shown([2, "x"])
    ('"Torch"', 'true', '[2, "x"]')
    """
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(map(shown, value))}]"
    else:
        text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
