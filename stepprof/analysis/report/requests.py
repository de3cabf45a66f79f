"""Read the times of requests that engines stated, from marks under ``stepprof.bind(sample=…)``.

`stepprof.mark_request` writes such marks. Forward steps do not show these times: an engine states how many
requests a forward step worked on, not which ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.model import Source
from stepprof.run.amounts import is_amount

NAMES = ("first_token_seconds", "decode_seconds", "generated_tokens")
_LARGEST = 1e9
"""Maximum of a value of a request, in seconds or tokens; a larger one is damage."""


class Request(msgspec.Struct, frozen=True):
    """The values that an engine stated of one request; None: not stated."""

    first_token: float | None
    """Nanoseconds from the request to its first token."""
    generated: int | None
    """Generated tokens."""
    decode: float | None
    """Nanoseconds from its first token to its last one."""

    @property
    def per_token(self) -> float | None:
        """Nanoseconds between two tokens; None: not known, or it has fewer than two tokens."""
        if self.decode is None or self.generated is None or self.generated < 2:
            return None
        return self.decode / (self.generated - 1)


class RequestTimes(msgspec.Struct, frozen=True):
    """The requests of one sample. Nanoseconds; None: not known."""

    count: int = 0
    """The requests of which an engine stated something."""
    generated: int | None = None
    """Their tokens; None: one of them does not state it."""
    first_token: float | None = None
    """Mean time from a request to its first token, over the requests that state it."""
    per_token: float | None = None
    """Mean time between two tokens, over the requests that state it."""


def requests_of(source: Source, chosen: Chosen, role: str | None) -> dict[int, list[Request]]:
    """Return the requests of each sample, by the number of its track.

    Args:
        source: a file of spans with the arguments of its marks.
        chosen: of the same source.
        role: only marks in windows of this role; None: in windows without one.
    """
    instants = source.instants
    if instants.args is None:
        return {}
    on_sample = np.array([track.kind == "sample" for track in source.tracks], bool)
    marks = np.flatnonzero(on_sample[instants.track]).tolist()
    args = [instants.args[at] for at in marks]
    found: dict[int, list[Request]] = {}
    for at, raw, of in zip(marks, args, chosen.roles_by_args(args), strict=True):
        stated = _decoded(raw or b"") if of == role else None
        if stated is not None:
            found.setdefault(int(instants.track[at]), []).append(stated)
    return found


def times_of(requests: Sequence[Request]) -> RequestTimes:
    """Return the means of some requests."""
    first = [each.first_token for each in requests if each.first_token is not None]
    paced = [each for each in requests if each.per_token is not None]
    generated = [each.generated for each in requests if each.generated is not None]
    gaps = sum((each.generated or 1) - 1 for each in paced)
    return RequestTimes(
        len(requests),
        sum(generated) if requests and len(generated) == len(requests) else None,
        sum(first) / len(first) if first else None,
        sum(each.decode or 0.0 for each in paced) / gaps if gaps else None,
    )


def _decoded(raw: bytes) -> Request | None:
    """Return the request that a mark states; None: it states none."""
    if not any(f'"{name}"'.encode() in raw for name in NAMES):
        return None
    try:
        stated = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(stated, dict):
        return None

    first, decode, tokens = (_amount(stated.get(name)) for name in NAMES)
    request = Request(
        None if first is None else first * 1e9,
        tokens if isinstance(tokens, int) else None,
        None if decode is None else decode * 1e9,
    )
    return None if request == Request(None, None, None) else request


def _amount(value: object) -> int | float | None:
    return value if is_amount(value) and value <= _LARGEST else None
