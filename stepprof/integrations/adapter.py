"""What an adapter declares: the names it needs of a framework, and the versions it was tested with.

An adapter looks up every name before it patches the first one. If one is missing it stays out.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from stepprof.integrations.patches import look_up
from stepprof.interrupts import ours

if TYPE_CHECKING:
    from stepprof.integrations.patches import Patches


@dataclass(frozen=True)
class Adapter:
    """One place where stepprof attaches to a framework.

    Args:
        name: what tables and logs call it.
        trigger: the module whose import attaches the adapter, or ``module:dotted.name`` in it.
        attach: makes the patches; called once, when every name was found.
        needs: maps ``module:dotted.name`` to the parameters that it must accept.
        distributions: the names of the package on PyPI; the first one that is installed gives the version.
        tested: the versions that the tests run and their newer patch releases, as a specifier of `packaging`.
    """

    name: str
    trigger: str
    attach: Callable[[Patches], None]
    needs: Mapping[str, tuple[str, ...]]
    distributions: tuple[str, ...]
    tested: str

    @property
    def module(self) -> str:
        """Return the module whose import attaches the adapter."""
        return self.trigger.partition(":")[0]

    def version(self) -> str | None:
        """Return the installed version; None: the framework is not installed."""
        for name in self.distributions:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None


def is_tested(adapter: Adapter, version: str | None) -> bool:
    """Return whether a version is in the adapter's tested range; an unknown one is not."""
    return version is not None and SpecifierSet(adapter.tested).contains(version, prereleases=True)


def missing_names(adapter: Adapter) -> list[str]:
    """Return the names and parameters that the imported framework lacks, in words; [] if none."""
    return [problem for need, parameters in adapter.needs.items() for problem in _problems(need, parameters)]


def _problems(need: str, parameters: tuple[str, ...]) -> Iterator[str]:
    try:
        found = look_up(need)
    except ours(ImportError, AttributeError):
        yield need
        return
    if not parameters:
        return
    try:
        accepted = inspect.signature(found).parameters
    except ours(TypeError, ValueError):
        yield f"{need} (its parameters are unknown)"
        return
    yield from (f"{need}({name})" for name in parameters if name not in accepted)
