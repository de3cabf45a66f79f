"""Which windows are selected in this process: by step, role and rank, and from which step on something has to be looked at again.

A window that is not selected must cost a comparison. So for each role an interval of steps is kept in which none is: `quiet`. The
rank may be known only later than the configuration (torch.distributed comes up after `init`); then it is asked for again at each
selected step, and at no other.

What is asked for while the job runs is laid over the configuration here: `request` and `withdraw`, from any thread, without a lock
that a window would have to take.
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

__all__ = ["Selector"]

ALWAYS_QUIET = (0, sys.maxsize)

MOST_ROLES = 4096
"""Of so many roles it is remembered where they are quiet: a program that makes up a name at each step must not fill the memory."""


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
        self.visits = Visits()
        # windows come in on several threads; reentrant, since a signal handler may come in between
        self._noting = threading.RLock()
        self.requests: tuple[Request, ...] = ()
        """What was asked for while the job runs; replaced as a whole, so that it is read without a lock."""
        self._requesting = threading.Lock()

    # -- what is asked for while the job runs

    def request(self, request: Request) -> bool:
        """From now on its steps are selected, with its changes; False where it was known. From any thread.

        It is recorded where a window of one of its steps comes in later than this. Raises ConfigError where it cannot stand together
        with what is configured, or asks for ranks that this world does not have.
        """
        self.asked_of(request)
        if request.ranks is not None and self.identity.world_size is not None and request.role is None:
            request.ranks.check(self.identity.world_size)
        with self._requesting:
            if any(known.name == request.name for known in self.requests):
                return False
            # of two for one step the one that was made first holds, in whatever order the ranks see them
            self.requests = tuple(sorted((*self.requests, request), key=_when_made))
        self.quiet.clear()
        return True

    def withdraw(self, name: str) -> bool:
        """A request holds no more: its steps that have not begun are as configured. False where it is not known."""
        with self._requesting:
            left = tuple(request for request in self.requests if request.name != name)
            if len(left) == len(self.requests):
                return False
            self.requests = left
        self.quiet.clear()
        return True

    # -- what holds

    def policies(self) -> Iterator[Policy]:
        """What holds without a role, and for each that the configuration names."""
        return (self.policy(role) for role in (None, *self._config.roles))

    def policy(self, role: str | None) -> Policy:
        """What holds for a role in this process: one that has nothing to record takes part with the null backend."""
        return self._as_recorded(self._config.policy(role))

    def _as_recorded(self, policy: Policy) -> Policy:
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
            # the step before a selected one is not quiet: at its end the target is armed
            self.quiet[role] = (step, min(_next_after(policy, step) for policy in policies) - 1)
        else:
            self.quiet[role] = ALWAYS_QUIET
        if self.requests is not requests:
            # another thread cleared what is quiet before this was written
            self.quiet.pop(role, None)
        return None

    def policy_at(self, step: int, role: str | None) -> Policy | None:
        """The policy by which this process, or what is attached in it, records this window; None: nothing does."""
        for policy in self._selecting(role):
            if step in policy.steps and self._concerns(role, policy):
                return policy
        return None

    def _selecting(self, role: str | None) -> list[Policy]:
        """The policies that select any steps of this role here, as far as that is known: what was asked for first comes first, the configured one at the end."""
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
        """Whether anything is recorded from here: this process, or what is attached in it."""
        return self.selects_rank(policy) or self._attached(role)

    def next_selected(self, step: int, role: str | None) -> float:
        """The next selected step after this one, as far as it matters for arming."""
        return min((_next_after(policy, step) for policy in self._selecting(role)), default=math.inf)

    def window(self, step: int, role: str | None, version: int | str | None) -> Window:
        """Note that a selected window came, and number it."""
        with self._noting:
            came = self._came.setdefault(role, set())
            occurrence, visit = self.visits.enter(step, role, came_before=step in came)
            came.add(step)
        return Window(step=step, role=role, occurrence=occurrence, version=version, visit=visit)

    def came(self, role: str | None = None) -> set[int]:
        """The steps of which a selected window came in: of this role, or of any."""
        if role is not None:
            return set(self._came.get(role, ()))
        return set().union(*list(self._came.values()))

    def asked_of(self, request: Request) -> list[Policy]:
        """What would hold for a request where anything is recorded from here: for no role and each that is named. Raises ConfigError."""
        policies = {
            role: self._as_recorded(request.policy(self._config.policy(role)))
            for role in (None, request.role, *self._config.roles)
            if request.concerns(role)
        }
        return [policy for role, policy in policies.items() if self._concerns(role, policy)]

    def has_come(self, step: int) -> bool:
        """Whether a selected window of this step came in, of whatever role. From any thread."""
        return any(step in steps for steps in list(self._came.values()))

    def never_came(self) -> Iterator[tuple[str | None, Steps]]:
        """Steps asked for by number of which no window came in; for a role that the configuration names, none of that role."""
        told = None
        for role in (None, *self._config.roles):
            policy = self._config.policy(role)
            came = self.came(role)
            missing = policy.steps.without(came)
            if self._concerns(role, policy) and not missing.is_none and missing != told:
                yield role, missing
                told = told or missing

    def matched_nothing(self) -> Iterator[str]:
        """Ranks of which nothing came, in a process that never heard what its rank is: `init` could not refuse them."""
        world = self.identity.world_size
        if self.identity.final or world is None:
            return
        told = None
        for role in (None, *self._config.roles):
            policy = self._config.policy(role)
            if policy.enabled and not policy.steps.is_none and not self._concerns(role, policy):
                try:
                    policy.ranks.check(world)
                except ConfigError as error:
                    if str(error) != told:
                        told = str(error)
                        yield told if role is None else f"roles.{role}: {told}"

    def look_for_rank(self) -> None:
        """Look again: torch.distributed may have come up since `init`. From any thread."""
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
            except ConfigError as error:  # too late to refuse it: the ranks that there are record
                logger.warning("rank.nonexistent", reason=str(error))


def _next_after(policy: Policy, step: int) -> int:
    following = policy.steps.next_after(step)
    return sys.maxsize if following is None else following


def _when_made(request: Request) -> tuple[int, str]:
    return request.made_unix_ns, request.name
