"""The names of all backends: the package's own, and those of the entry-point group
`stepprof.backends`.

`stepprof.backends` loads them. Entry points are read only for a name that is not the package's own, because
that reads the metadata of every installed package.
"""

from __future__ import annotations

import re

from stepprof.config.validators import nearest, texts
from stepprof.errors import ConfigError, shown

BUILT_IN = ("torch", "npu", "nsys", "memory", "null")
GROUP = "stepprof.backends"
BESIDE_OTHERS = "stepprof.backends.together"
"""The entry-point group of plug-in backends that can record together with others."""

_EXCLUSIVE = ("torch", "npu", "nsys")
"""Two captures of these backends in one process crash it, or lose data."""


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, the package's own first."""
    from importlib.metadata import entry_points

    return tuple(dict.fromkeys([*BUILT_IN, *sorted(point.name for point in entry_points(group=GROUP))]))


def check_backends(value: object, key: str) -> tuple[str, ...]:
    """Accept the name of a backend, or a list of backends that can run together."""
    if not isinstance(value, str | list | tuple):
        raise ConfigError.at(key, value, f"expected the name of a backend{nearest(value, BUILT_IN)}")
    found = texts(value, key)
    for name in found:
        if name not in BUILT_IN and name not in (valid := backend_names()):
            several = re.split(r"\s*[+,]\s*", name)
            meant = (
                f"; did you mean {shown(several)}?" if set(several) <= set(valid) else nearest(name, valid)
            )
            raise ConfigError.at(key, value if len(found) == 1 else name, f"unknown backend{meant}")
    if "null" in found and len(found) > 1:
        raise ConfigError.at(key, value, '"null" cannot be combined; did you mean "null"?')
    clashing = [name for name in found if name in _EXCLUSIVE]
    if len(clashing) > 1:
        raise ConfigError.at(
            key,
            value,
            f'{" and ".join(clashing)} cannot record in one process together; did you mean "{clashing[0]}"?',
        )
    if "npu" in found and "memory" in found:
        raise ConfigError.at(
            key,
            value,
            '"memory" keeps the history of CUDA\'s allocator, which a process on an Ascend device does not use; '
            'did you mean "npu" with npu.profile_memory = true?',
        )
    for name in found:
        if len(found) > 1 and name not in BUILT_IN and name not in _beside_others():
            problem = (
                f'"{name}" does not declare that it can record together with others (entry-point group {BESIDE_OTHERS}); '
                f'did you mean "{name}" alone?'
            )
            raise ConfigError.at(key, value, problem)
    return found


def _beside_others() -> set[str]:
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group=BESIDE_OTHERS)}
