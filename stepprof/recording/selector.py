"""Decide which windows are selected in this process: by step, role and rank.

A window that is not selected must cost only a comparison. So each role has an interval of steps
without any selected window: `quiet`. The rank may become known later than the configuration
(torch.distributed is initialised after `init`). Then it is looked for at each selected step, and at
no other.

`request` and `withdraw` change the selection while the job runs, from any thread, without a lock that a
window would need.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stepprof.config.config import Config, Policy, role_name
from stepprof.config.selection import Steps
from stepprof.errors import ConfigError
from stepprof.host.rank import Identity, find_identity
from stepprof.log import logger
from stepprof.recording.visit_counter import Visits
from stepprof.run.model import Window

if TYPE_CHECKING:
    from stepprof.run.requests import Request

ALWAYS_QUIET = (0, sys.maxsize)

MOST_ROLES = 4096
"""Maximum number of roles whose quiet steps are remembered: a program may invent a name for each step."""


class Selector:
    """The selection of one process.

    Args:
        config: the configuration.
        identity: the rank of this process, as far as known.
        found: called when the rank becomes known later.
        attached: returns whether windows of a role reach an engine or a rank elsewhere, whatever the rank of this process.
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
        """For each role the interval of steps (start, end) in which no window needs a look."""
        self._config = config
        self._found = found
        self._entered: dict[str | None, set[int]] = {}
        self.visits = Visits()
        # windows enter on several threads; reentrant, since a signal handler may interrupt
        self._noting = threading.RLock()
        self.requests: tuple[Request, ...] = ()
        """The requests. The tuple is replaced as a whole, so it is read without a lock."""
        self._requesting = threading.Lock()

    # -- requests

    def request(self, request: Request) -> bool:
        """Select the steps of a request, with its changes. Return False if it is already known. Any
        thread may call this.

        Windows of its steps that enter later are recorded. Raise ConfigError if it conflicts with
        the configuration, or names ranks that this world does not have.
        """
        self.asked_of(request)
        if request.ranks is not None and self.identity.world_size is not None and request.role is None:
            request.ranks.check(self.identity.world_size)
        with self._requesting:
            if any(known.name == request.name for known in self.requests):
                return False
            # of two requests for one step the older one counts, in whatever order the ranks see them
            self.requests = tuple(sorted((*self.requests, request), key=_when_made))
        self.quiet.clear()
        return True

    def withdraw(self, name: str) -> bool:
        """Withdraw a request: its steps that have not begun use the configuration. Return False if it is unknown."""
        with self._requesting:
            left = tuple(request for request in self.requests if request.name != name)
            if len(left) == len(self.requests):
                return False
            self.requests = left
        self.quiet.clear()
        return True

    def drives_others(self) -> None:
        """Note that engines or ranks are attached: an actor of Ray without a rank is a driver then, and records nothing itself."""
        if self.identity.source == "ray":
            self.identity = dataclasses.replace(self.identity, records=False)

    # -- policies

    def policies(self) -> Iterator[Policy]:
        """Yield the policy without a role, and that of each configured role."""
        return (self.policy(role) for role in (None, *self._config.roles))

    def policy(self, role: str | None) -> Policy:
        """Return the policy of a role here; with the null backend in a process that has nothing to record."""
        return self._as_recorded(self._config.policy(role))

    def _as_recorded(self, policy: Policy) -> Policy:
        return policy if self.identity.records else dataclasses.replace(policy, backend=("null",))

    def selects_rank(self, policy: Policy) -> bool:
        """Return whether the policy selects this process."""
        rank = self.identity.rank
        if not policy.enabled:
            return False
        return rank in policy.ranks if isinstance(rank, int) else not policy.ranks.is_none

    def select(self, step: int, role: str | None) -> Policy | None:
        """Return the policy of a selected window, or None. Raise ConfigError if the role is not a valid name."""
        if role is not None:
            role_name(role)
        self.visits.pass_by(step, role)
        requests = self.requests
        policies = self._selecting(role)
        for policy in policies:
            if step in policy.steps:
                if self.identity.final:
                    return policy
                self.look_for_rank()
                return self.policy_at(step, role)
        if len(self.quiet) >= MOST_ROLES:
            self.quiet.clear()
        if policies:
            # the step before a selected one is not quiet: the target is armed at its end
            self.quiet[role] = (step, min(_next_after(policy, step) for policy in policies) - 1)
        else:
            self.quiet[role] = ALWAYS_QUIET
        if self.requests is not requests:
            # another thread has cleared the interval meanwhile
            self.quiet.pop(role, None)
        return None

    def policy_at(self, step: int, role: str | None) -> Policy | None:
        """Return the policy by which this process, or its engines, record this window; None: it is not recorded."""
        for policy in self._selecting(role):
            if step in policy.steps and self._concerns(role, policy):
                return policy
        return None

    def _selecting(self, role: str | None) -> list[Policy]:
        """Return the policies that may select steps of a role: requests, oldest first, then the configured."""
        base = self.policy(role)
        policies = [
            self._as_recorded(request.policy(base)) for request in self.requests if request.concerns(role)
        ]
        policies.append(base)
        return [
            policy
            for policy in policies
            if policy.enabled
            and not policy.steps.is_none
            and (not self.identity.final or self._concerns(role, policy))
        ]

    def _concerns(self, role: str | None, policy: Policy) -> bool:
        """Return whether this process, or an attached engine, records by the policy."""
        return self.selects_rank(policy) or self._attached(role)

    def next_selected(self, step: int, role: str | None) -> float:
        """Return the next selected step after this one, for arming."""
        return min((_next_after(policy, step) for policy in self._selecting(role)), default=math.inf)

    def window(self, step: int, role: str | None, version: int | str | None) -> Window:
        """Count a selected window, and return it."""
        with self._noting:
            entered_steps = self._entered.setdefault(role, set())
            occurrence, visit = self.visits.enter(step, role, came_before=step in entered_steps)
            entered_steps.add(step)
        return Window(step=step, role=role, occurrence=occurrence, version=version, visit=visit)

    def entered_steps(self, role: str | None = None) -> set[int]:
        """Return the steps with a selected window, of this role or of any."""
        if role is not None:
            return set(self._entered.get(role, ()))
        return set().union(*list(self._entered.values()))

    def asked_of(self, request: Request) -> list[Policy]:
        """Return the policies that a request would have here, of all configured roles. Raise ConfigError."""
        policies = {
            role: self._as_recorded(request.policy(self._config.policy(role)))
            for role in (None, request.role, *self._config.roles)
            if request.concerns(role)
        }
        return [policy for role, policy in policies.items() if self._concerns(role, policy)]

    def never_entered(self) -> Iterator[tuple[str | None, Steps]]:
        """Yield the listed steps of which no window entered; for a configured role, none of that role."""
        reported = None
        for role in (None, *self._config.roles):
            policy = self._config.policy(role)
            entered_steps = self.entered_steps(role)
            missing = policy.steps.without(entered_steps)
            if self._concerns(role, policy) and not missing.is_none and missing != reported:
                yield role, missing
                reported = reported or missing

    def matched_nothing(self) -> Iterator[str]:
        """Yield the selected ranks that do not exist, if this process never learned its rank: `init`
        could not refuse them.
        """
        world = self.identity.world_size
        if self.identity.final or world is None:
            return
        reported = None
        for role in (None, *self._config.roles):
            policy = self._config.policy(role)
            if policy.enabled and not policy.steps.is_none and not self._concerns(role, policy):
                try:
                    policy.ranks.check(world)
                except ConfigError as error:
                    if str(error) != reported:
                        reported = str(error)
                        yield reported if role is None else f"roles.{role}: {reported}"

    def look_for_rank(self) -> None:
        """Look for the rank again: torch.distributed may be initialised by now. Any thread may call this."""
        with self._noting:
            if self.identity.final:
                return
            identity = find_identity(None, None, os.environ)
            if not identity.final:
                return
            self.identity = identity
        logger.info("rank.known", rank=identity.rank, world_size=identity.world_size, source=identity.source)
        self._found()
        if identity.world_size is not None:
            try:
                self._config.check_world(identity.world_size)
            except ConfigError as error:  # too late to refuse it: the existing ranks record
                logger.warning("rank.nonexistent", reason=str(error))


def _next_after(policy: Policy, step: int) -> int:
    following = policy.steps.next_after(step)
    return sys.maxsize if following is None else following


def _when_made(request: Request) -> tuple[int, str]:
    return request.made_unix_ns, request.name
