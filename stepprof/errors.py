"""Every exception that stepprof raises.

One class per thing that a caller can catch. Each is also the built-in exception that it is a case of, so that code which knows nothing of stepprof still
handles it sensibly. The message of each says what happened, to what, and what to do about it.
"""

from __future__ import annotations

__all__ = ["BackendError", "ConfigError", "EngineError", "StateError", "StepprofError"]


class StepprofError(Exception):
    """The base of every exception of stepprof."""


class ConfigError(StepprofError, ValueError):
    """What the user configured cannot be: an unknown key, a wrong type or value, an impossible rank.

    The message names the key, the value and the nearest valid one.

    >>> raise ConfigError.at("torch.with_stack", "yes", "expected true or false; did you mean true?")
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: torch.with_stack = "yes": expected true or false; did you mean true?
    """

    key: str | None = None
    """The dotted key that is wrong, where it is one."""
    value: object = None
    """What that key was set to."""
    problem: str = ""
    """What is wrong with it, and what was probably meant."""

    @classmethod
    def at(cls, key: str, value: object, problem: str) -> ConfigError:
        """Return the error that says: `key` is `value`, and that is a `problem`."""
        error = cls(f"{key} = {shown(value)}: {problem}")
        error.key, error.value, error.problem = key, value, problem
        return error

    def under(self, table: str) -> ConfigError:
        """Return the same error with its key inside `table`: what checks a table does not know where that table stands."""
        return ConfigError.at(f"{table}.{self.key}" if self.key else table, self.value, self.problem)


class StateError(StepprofError, RuntimeError):
    """What was asked for is not possible in the present state; the message names the state and who holds it."""


class BackendError(StepprofError, RuntimeError):
    """A capture backend cannot record here, or failed while it did."""


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
