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
    """


class StateError(StepprofError, RuntimeError):
    """What was asked for is not possible in the present state; the message names the state and who holds it."""


class BackendError(StepprofError, RuntimeError):
    """A capture backend cannot record here, or failed while it did."""


class EngineError(StepprofError, RuntimeError):
    """An attached engine or rank refused, failed, or could not be reached."""
