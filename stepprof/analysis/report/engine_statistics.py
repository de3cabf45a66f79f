"""Read an engine's own statistics of a window, which the manifest states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stepprof.analysis.report.schema import EngineWork
from stepprof.run.summary import SESSIONS, engine_label


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of one engine, as its entry in the manifest states them."""

    kind: str | None
    seconds: float | None
    """From the start of its capture to the stop."""
    values: Mapping[str, float]

    def count(self, name: str) -> int | None:
        """Return a number of things; None: not known."""
        value = self.values.get(name)
        return None if value is None else round(value)

    def mean(self, total: str, count: str) -> float | None:
        """Return a mean; None: not known, or of nothing."""
        number, value = self.values.get(count), self.values.get(total)
        return value / number if number and value is not None else None

    @property
    def preempted(self) -> int:
        """The preemptions of an engine without speculative decoding; else 0."""
        return 0 if self.values.get("drafted_tokens") else self.count("preemptions") or 0

    def opened_with(self, tokens: int) -> bool:
        """Return whether this number of tokens is that of all new prompts of an SGLang engine. It computed any prompt
        tokens after these again.
        """
        prompt, cached = self.count("prompt_tokens"), self.count("cached_tokens")
        return self.kind == "sglang" and bool(self.values.get("idle")) and cached == 0 and prompt == tokens

    def recomputed(self, prefill: int | None, decode: int | None) -> int | None:
        """Return the tokens that were computed again after preemptions; None: not known.

        Args:
            prefill: tokens of prompts in all forward steps.
            decode: the other tokens in them.
        """
        preemptions, prompt, cached = (
            self.count(name) for name in ("preemptions", "prompt_tokens", "cached_tokens")
        )
        if None in (preemptions, prompt, cached, prefill) or not self.values.get("idle"):
            return None
        assert prompt is not None and cached is not None and prefill is not None  # noqa: S101, PT018 - narrows types
        if self.kind == "sglang":  # the engine treats recomputed tokens as a prompt
            again = prefill - (prompt - cached) if not cached else None
        else:
            generated, first = self.count("generated_tokens"), self.count("first_tokens")
            if decode is None or generated is None or first is None or self.values.get("drafted_tokens"):
                return None
            again = prefill + decode - (prompt - cached) - (generated - first)
        return again if again is not None and again >= 0 else None

    def into(self, work: EngineWork, recomputed: int | None) -> EngineWork:
        """Return the figures of an engine, completed with these statistics."""
        prompt, generated = self.count("prompt_tokens"), self.count("generated_tokens")
        return msgspec.structs.replace(
            work,
            limit=self.count("max_sequences"),
            requests=self.count("requests"),
            prompt_tokens=prompt,
            cached_tokens=self.count("cached_tokens"),
            generated_tokens=generated,
            recomputed_tokens=0 if self.count("preemptions") == 0 else recomputed,
            preemptions=self.count("preemptions"),
            prompt_tokens_per_second=_rate(prompt, work.seconds),
            generated_tokens_per_second=_rate(generated, work.seconds),
            first_token=self.mean("first_token_seconds", "first_tokens"),
            per_token=self.mean("token_gap_seconds", "token_gaps"),
            per_request=self.mean("request_seconds", "requests"),
        )


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds


def statistics_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Statistics]:
    """Return the statistics by the label of the engine. An engine with several entries that state some has none."""
    found: dict[str, list[Statistics]] = {}
    for entry in entries:
        values = entry.get("statistics")
        if isinstance(values, dict) and entry["kind"] not in SESSIONS:
            start, end = entry["start_unix_ns"], entry["end_unix_ns"]
            seconds = (end - start) / 1e9 if start is not None and end is not None and end > start else None
            found.setdefault(engine_label(entry), []).append(Statistics(entry["kind"], seconds, values))
    return {label: each[0] for label, each in found.items() if len(each) == 1}
