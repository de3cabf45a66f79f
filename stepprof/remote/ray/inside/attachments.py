"""The attachments of one process: all of them, whose drivers are looked after, and which end to make room for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepprof.remote.base import EngineFailure
from stepprof.remote.core.lease import Watch

if TYPE_CHECKING:
    from stepprof.remote.ray.inside.attachment import Guest
    from stepprof.remote.ray.inside.messages import Attachment

__all__ = ["guests", "make_room", "watch"]

guests: dict[str, Guest] = {}
watch = Watch()


def make_room(guest: Guest, attachment: Attachment) -> None:
    """End the attachments of drivers that have ended, and those of an earlier run of this driver. Raises EngineFailure where a living one's session is in the way."""
    lease = attachment.lease
    for other in [other for other in guests.values() if other is not guest]:
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
                f"the actor follows the windows of run {theirs.run_id}, whose driver lives ({theirs.lease}): "
                "end that job, or have it detach the actor",
                "busy",
            )
