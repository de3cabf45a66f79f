"""Read the configuration of MindSpeed-RL's own profiler, for a job that sets ``STEPPROF_FROM=framework``.

What only this module knows: it counts the iterations of this job from 1, and ``profile_step_end`` is not recorded; the driver passes
it to each group of workers, so that switching it off before a group is made is enough; and a job's groups may share one.
"""

from __future__ import annotations

from typing import Any

from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler

OPTION = "profiler_config.integrated"
SWITCHES = {
    "profile_with_memory": "profile_memory",
    "profile_record_shapes": "record_shapes",
    "profile_with_module": "with_modules",
    "mstx": "mstx",
}
"""Options with their counterpart in ``[npu]``."""
FIELDS = (
    *("profile", "stage", "profile_step_start", "profile_step_end", "profile_ranks", "profile_level"),
    *SWITCHES,
)


class OwnProfiler:
    """What MindSpeed-RL's profiler is configured for, once a group of workers was made with it."""

    def __init__(self) -> None:
        self._found: Any = None

    def group_begins(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note the configuration of a group that is about to be made, and switch it off if stepprof takes its place."""
        own = keywords.get("profiler_config", arguments[6] if len(arguments) > 6 else None)
        if own is not None and own.profile:
            self._found = own
            own.profile = not own_profiler.is_asked_for()

    def as_configuration(self) -> dict[str, Any] | None:
        """Return the configuration of stepprof, or None if it does not take the place of the profiler.

        Raises:
            ConfigError: it is to take its place, and no steps are selected.
        """
        if not own_profiler.is_asked_for():
            return None
        if not self._steps():
            raise ConfigError.at(
                f"{OPTION}.profile", False, "must be on, with steps, for STEPPROF_FROM=framework"
            )
        own = self._found
        everyone = own.profile_ranks == "all"
        return {
            "steps": [*self._steps()],
            "join_steps": own.stage == "all",
            "backend": "npu",
            "ranks": "all" if everyone else [int(rank) for rank in own.profile_ranks],
            "npu": {
                "level": own.profile_level.removeprefix("level_"),
                **{key: bool(getattr(own, option)) for option, key in SWITCHES.items()},
            },
        }

    def settle(self, adapter: str) -> None:
        """Note which configuration applies, or report the steps that both record."""
        own_profiler.settle(
            adapter,
            f"{OPTION}.profile_step_start",
            self._steps(),
            take_over=own_profiler.is_asked_for(),
        )

    def _steps(self) -> range:
        own = self._found
        return range(0) if own is None else range(own.profile_step_start, own.profile_step_end)
