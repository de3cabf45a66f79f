"""The attachments of one process: they are listed, their drivers are watched, and one may end to make room for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepprof.remote.base import EngineFailure
from stepprof.remote.core.lease import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepprof.remote.ray.inside.messages import Attachment

watch = Watch()


class Occupant(Protocol):
    """An attachment that exists in this process."""

    attachment: Attachment | None

    @property
    def follows(self) -> bool:
        """Return whether it uses a session of this process."""

    def driver_is_gone(self) -> bool:
        """Return whether the driver process has certainly ended."""

    def end_with_driver(self, *, waits: bool = False) -> None:
        """Keep what it records as partial, and release the process."""


def make_room(attachment: Attachment, others: Iterable[Occupant]) -> None:
    """End the attachments of drivers that have ended, and those of an earlier run of this driver.
    Raises EngineFailure if a living driver's session occupies the process.
    """
    lease = attachment.lease
    for other in others:
        theirs = other.attachment
        if theirs is None or lease is None or theirs.lease is None:
            continue
        same_run = theirs.run_id == attachment.run_id
        if theirs.lease == lease and same_run:
            continue
        if theirs.lease == lease or other.driver_is_gone():
            other.end_with_driver(waits=True)
        elif attachment.kind != "engine" and other.follows and not same_run:
            raise EngineFailure(
                f"the actor follows the windows of run {theirs.run_id}, whose driver is alive ({theirs.lease}): "
                "end that job, or have it detach the actor",
                "busy",
            )
