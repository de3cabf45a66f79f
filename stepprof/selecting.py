"""Which windows are selected in this process: by step, role and rank, and from which step on something has to be looked at again.

A window that is not selected must cost a comparison. So for each role an interval of steps is kept in which none is: `quiet`. The
rank may be known only later than the configuration (torch.distributed comes up after `init`); then it is asked for again at each
selected step, and at no other.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator

from stepprof.config import Config, Policy, role_name
from stepprof.environment import Identity, find_identity
from stepprof.errors import ConfigError
from stepprof.log import logger
from stepprof.selection import Steps

__all__ = ["Selector"]

ALWAYS_QUIET = (0, sys.maxsize)


class Selector:
    """The selection of one process.

    Args:
        config: what is configured.
        identity: who this process is, as far as that is known.
        found: called when the rank becomes known later.
        attached: whether windows of a role reach an engine or a rank elsewhere, whatever the rank of this process.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        found: Callable[[], object],
        attached: Callable[[str | None], bool] = lambda role: False,
    ) -> None:
        self.identity = identity
        self._attached = attached
        self.quiet: dict[str | None, tuple[int, int]] = {}
        """For each role: from which step on, and before which one, no window of it has anything to ask."""
        self._config = config
        self._found = found
        self._came: dict[str | None, set[int]] = {}

    def policies(self) -> Iterator[Policy]:
        """What holds without a role, and for each that the configuration names."""
        return (self.policy(role) for role in (None, *self._config.roles))

    def policy(self, role: str | None) -> Policy:
        """What holds for a role in this process: one that has nothing to record takes part with the null backend."""
        policy = self._config.policy(role)
        return policy if self.identity.records else dataclasses.replace(policy, backend=("null",))

    def selects_rank(self, policy: Policy) -> bool:
        """Whether this process is of those that the policy selects."""
        rank = self.identity.rank
        if not policy.enabled:
            return False
        return rank in policy.ranks if isinstance(rank, int) else not policy.ranks.is_none

    def select(self, step: int, role: str | None) -> Policy | None:
        """The policy of a selected window, or None. Raises ConfigError where the role is no name."""
        if role is not None:
            role_name(role)
        policy = self.policy(role)
        if policy.steps.is_none or not policy.enabled:
            self.quiet[role] = ALWAYS_QUIET
            return None
        if self.identity.final and not self._concerns(role, policy):
            self.quiet[role] = ALWAYS_QUIET
            return None
        if step not in policy.steps:
            following = policy.steps.next_after(step)
            # the step before a selected one is not quiet: at its end the target is armed
            self.quiet[role] = (step, sys.maxsize if following is None else following - 1)
            return None
        self._look_for_rank()
        policy = self.policy(role)
        return policy if self._concerns(role, policy) else None

    def _concerns(self, role: str | None, policy: Policy) -> bool:
        """Whether anything is recorded from here: this process, or what is attached in it."""
        return self.selects_rank(policy) or self._attached(role)

    def next_selected(self, step: int, role: str | None) -> float:
        """The next selected step after this one, as far as it matters for arming."""
        following = self._config.policy(role).steps.next_after(step)
        return math.inf if following is None else following

    def note(self, step: int, role: str | None) -> None:
        """A selected window came."""
        self._came.setdefault(role, set()).add(step)

    def never_came(self) -> Iterator[tuple[str | None, Steps]]:
        """Steps asked for by number of which no window came in; for a role that the configuration names, none of that role."""
        told = None
        for role in (None, *self._config.roles):
            policy = self._config.policy(role)
            came = set().union(*self._came.values()) if role is None else self._came.get(role, set())
            missing = policy.steps.without(came)
            if self._concerns(role, policy) and not missing.is_none and missing != told:
                yield role, missing
                told = told or missing

    def _look_for_rank(self) -> None:
        """Asked again at each selected step: torch.distributed may have come up since `init`."""
        if self.identity.final:
            return
        identity = find_identity(None, None, os.environ)
        if not identity.final:
            return
        logger.info("rank known", rank=identity.rank, world_size=identity.world_size, source=identity.source)
        self.identity = identity
        self._found()
        if identity.world_size is not None:
            try:
                self._config.check_world(identity.world_size)
            except ConfigError as error:  # too late to refuse it: the ranks that there are record
                logger.warning("ranks that do not exist", reason=str(error))
