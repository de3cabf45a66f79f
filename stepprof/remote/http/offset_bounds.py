"""Bounds of the offset between a server's clock and that of this host, narrowed by each answer."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.remote.http.reply import Reply

SECOND = 1_000_000_000
DRIFT = 1e-4
"""How fast two clocks drift apart at worst: a tenth of a millisecond per second."""


class Bounds:
    """The two bounds of the offset (theirs minus ours, in nanoseconds), by all answers so far."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None
        self.lag_ns = 0
        """The apparent age of the last Date, by our own clock."""
        self._noted_ns = 0

    @property
    def known(self) -> bool:
        """Return whether both bounds are known."""
        return self.low is not None and self.high is not None

    def admit(self, offset_ns: int) -> bool:
        """Return whether this offset is possible."""
        return (self.low is None or self.low <= offset_ns) and (self.high is None or offset_ns <= self.high)

    def note_date(self, reply: Reply) -> None:
        """Use the Date of an answer, which may be older than the answer."""
        second = date_of(reply)
        if second is not None:
            self.lag_ns = reply.sent_unix_ns - (second + 1) * SECOND
            self._narrow(second * SECOND - reply.received_unix_ns, None, reply.received_unix_ns)

    def note(self, second: int, reply: Reply) -> None:
        """Use an answer that was stamped with the second in which it was made."""
        low = second * SECOND - reply.received_unix_ns
        self._narrow(low, (second + 1) * SECOND - reply.sent_unix_ns, reply.received_unix_ns)

    def _narrow(self, low: int, high: int | None, now_ns: int) -> None:
        drifted = int((now_ns - self._noted_ns) * DRIFT)
        lows = [low] if self.low is None else [low, self.low - drifted]
        highs = [
            each for each in (high, None if self.high is None else self.high + drifted) if each is not None
        ]
        self.low, self.high, self._noted_ns = max(lows), min(highs, default=None), now_ns
        if (
            self.high is not None and self.low > self.high
        ):  # one of the clocks was set: earlier bounds are void
            self.low, self.high = low, high

    def seconds_to_change(self, unix_ns: int) -> float:
        """Return in how many seconds the server's second changes, if its offset lies in the middle of the bounds."""
        return (-(unix_ns + self.offset_ns) % SECOND) / SECOND

    @property
    def offset_ns(self) -> int:
        """Return the middle of the bounds; both must be known."""
        return ((self.low or 0) + (self.high or 0)) // 2

    @property
    def error_ns(self) -> int:
        """Return the largest possible error of the middle."""
        return ((self.high or 0) - (self.low or 0) + 1) // 2


def date_of(reply: Reply) -> int | None:
    """Return the whole second in an answer's ``Date``."""
    text = reply.headers.get("date")
    if text is None:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        OSError,
    ):  # the parser may raise anything for invalid text
        return None
