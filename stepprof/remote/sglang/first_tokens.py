"""Leave out the times to the first token that older versions of SGLang count wrongly.

Before 0.5.22, the time of a request that is not streamed ends with its first output: after 50 tokens, or with its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepprof.remote.sglang.request import Facts

__all__ = ["credible"]

RIGHT_SINCE = (0, 5, 22)


def credible(counted: Mapping[str, Any] | None, facts: Facts | None) -> Mapping[str, Any] | None:
    """Return what an engine counted, without the sum of the times to the first token where it may be wrong.

    It is right in newer versions, and if each later token was counted with a time of its own: then all requests were
    streamed token by token.

    Args:
        counted: the difference of two samples; None: not known.
        facts: the properties of the engine; None: not known.
    """
    if counted is None or (facts is not None and facts.is_since(RIGHT_SINCE)):
        return counted
    gaps, tokens, first = (counted.get(key) for key in ("token_gaps", "generated_tokens", "first_tokens"))
    if None not in (gaps, tokens, first) and gaps == tokens - first:  # type: ignore[operator]
        return counted
    return {key: value for key, value in counted.items() if key != "first_token_seconds"}
