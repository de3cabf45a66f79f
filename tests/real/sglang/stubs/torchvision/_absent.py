"""Provide the attributes of every module of the stub: functions that raise an error with the name of the
missing function.
"""

from collections.abc import Callable


def absent(module: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``."""

    def get(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"{module}.{name}")

        def missing(*_: object, **__: object) -> None:
            raise NotImplementedError(f"{module}.{name} is a stub: this environment has no torchvision")

        return missing

    return get
