"""The functions of a framework that an adapter patches, as a list from which the adapter is made.

Each function is named once: the adapter looks it up and patches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepprof.integrations.adapter import Adapter
from stepprof.integrations.patches import After, Before, Change, Patches
from stepprof.integrations.training_loop import close_timer, open_timer


@dataclass(frozen=True)
class Hook:
    """A function of a framework that an adapter patches.

    Args:
        target: ``module:Class.method`` or ``module:function``.
        needs: the parameters that it must accept.
        make: makes the patch.
    """

    target: str
    needs: tuple[str, ...]
    make: Callable[[Patches], None]


def around(
    target: str,
    before: Before | None,
    after: After | None = None,
    *,
    needs: tuple[str, ...] = (),
    timer: bool = False,
) -> Hook:
    """Return the hook that makes a patch by `Patches.around`."""
    return Hook(target, needs, lambda patches: patches.around(target, before, after, timer=timer))


def block(
    target: str, before: Before, after: After, *, needs: tuple[str, ...] = (), timer: bool = False
) -> Hook:
    """Return the hook that makes a patch by `Patches.block`."""
    return Hook(target, needs, lambda patches: patches.block(target, before, after, timer=timer))


def result(target: str, change: Change, *, needs: tuple[str, ...] = ()) -> Hook:
    """Return the hook that makes a patch by `Patches.result`."""
    return Hook(target, needs, lambda patches: patches.result(target, change))


def timed(target: str, name: str, role: str | None = None, *, needs: tuple[str, ...] = ()) -> Hook:
    """Return the hook that makes each call of a function a region, or the window of a role."""
    return around(target, lambda *_: open_timer(name, role), close_timer, needs=needs)


def hooked(
    name: str,
    trigger: str,
    hooks: Sequence[Hook],
    needs: Mapping[str, tuple[str, ...]] | None = None,
    *,
    distributions: tuple[str, ...],
    tested: str,
) -> Adapter:
    """Return an adapter that makes the patches of these hooks, and needs their targets and `needs`."""

    def attach(patches: Patches) -> None:
        for hook in hooks:
            hook.make(patches)

    every = {**{hook.target: hook.needs for hook in hooks}, **(needs or {})}
    return Adapter(name, trigger, attach, every, distributions, tested)
