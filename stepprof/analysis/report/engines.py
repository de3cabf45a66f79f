"""Report the generation of each engine: batch sizes over time, forward steps by stage, and its own statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stepprof.analysis.findings.facts import Recomputing
from stepprof.analysis.report.engine_work import StageTotal, total
from stepprof.analysis.report.generations import (
    SUMS,
    Engine,
    Generation,
    bound_samples,
    engines_in,
    generations_of,
)
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process, engine_of
from stepprof.analysis.report.rollout import rollout
from stepprof.analysis.report.schema import EngineWork, Rollout, Stage
from stepprof.run.summary import SESSIONS, engine_label


def engines_of(
    processes: Sequence[Process], start: int, short: Collection[str], entries: Sequence[Mapping[str, Any]]
) -> tuple[list[Rollout], list[EngineWork], list[Generation]]:
    """Return the batch sizes of each engine and of bound samples, what each engine did, and the generation of each role.

    Args:
        processes: of one clock.
        start: second 0 of the report.
        short: labels whose captures do not cover their windows.
        entries: the engines in the manifest.
    """
    engines = engines_in(processes)
    made = [(engine.together(), engine.name not in short) for engine in engines.values()]
    rows: list[Rollout | None] = [
        rollout(label, curve, start, iterations=count, peak=peak, whole=whole)
        for (label, curve, count, peak), whole in made
    ]
    reported = statistics_of(entries)
    works = [
        _work(engine, row, reported.get(engine.name))
        for engine, row in zip(engines.values(), rows, strict=True)
        if row is not None
    ]
    rows += [
        rollout(f"samples of {label}", samples.curve(), start, bound=[samples])
        for label, samples in bound_samples(processes)
    ]
    generations = generations_of(processes, short)
    rows += _sums(generations, start)
    return [row for row in rows if row is not None], works, generations


def _sums(generations: Sequence[Generation], start: int) -> Iterator[Rollout | None]:
    """Yield a row for all engines of each role that has several, and one for all of its samples."""
    for each in generations:
        alike = [other for other in generations if bool(other.samples) == bool(each.samples)]
        label = SUMS[bool(each.samples)] + (f" of {each.role or 'no role'}" if len(alike) > 1 else "")
        # forward steps that may be of another window leave the sum unknown
        if each.parts > 1 and not each.unclear:
            yield rollout(
                label, each.curve, start, iterations=each.iterations, bound=each.samples, whole=each.whole
            )


def _work(engine: Engine, row: Rollout, reported: Statistics | None) -> EngineWork:
    """Return what an engine did, from its forward steps and its own statistics."""
    stages = engine.stages()
    whole = row.whole
    seconds, basis = row.seconds, "generation"
    if not whole and reported is not None and reported.seconds:
        seconds, basis = reported.seconds, "window"
    known = reported if reported is not None and (whole or basis == "window") else None
    work = EngineWork(
        label=row.label if engine.alone else engine.name,
        seconds=seconds,
        basis=basis,
        stages=[
            Stage(
                each.stage, each.iterations, each.nanoseconds / 1e9, each.prefill_tokens, each.decode_tokens
            )
            for each in stages
        ],
        whole=whole,
        peak_batch=row.peak_batch,
        mean_batch=row.mean_batch,
    )
    return work if known is None else known.into(work, _recomputed(stages, known) if whole else None)


def recomputing_of(
    processes: Sequence[Process], entries: Sequence[Mapping[str, Any]]
) -> dict[str, Recomputing]:
    """Return when each worker of an engine computed preempted sequences again, by its label.

    An engine must have counted preemptions. With speculative decoding, its forward steps do not show it. SGLang's show it
    if it computed all new prompts before its first decode step.
    """
    reported = statistics_of(entries)
    opened = {
        engine.name
        for engine in engines_in(processes).values()
        if (known := reported.get(engine.name)) is not None and known.opened_with(engine.opening_tokens())
    }
    found = {}
    for process in processes:
        if process.kind == "engine" and process.origin.replica is not None:
            label = engine_of(process.origin)
            statistics = reported.get(label)
            preemptions = None if statistics is None else statistics.preempted
            retracts = label in opened
            when = Intervals.all_of(
                Intervals.unpack(digest.batches.repeats if retracts else digest.batches.surplus)
                for digest in process.digests
                if digest.batches is not None and not digest.unclear
            )
            if preemptions and len(when):
                found[process.label] = Recomputing(preemptions, when, retracts)
    return found


def without_steps(works: Sequence[EngineWork], entries: Sequence[Mapping[str, Any]]) -> list[EngineWork]:
    """Return the figures of engines whose forward steps are not in the report, by their own statistics."""
    there = {work.label for work in works}
    return [
        reported.into(EngineWork(label, reported.seconds, "window", whole=False), None)
        for label, reported in statistics_of(entries).items()
        if label not in there and reported.seconds
    ]


def _recomputed(stages: Sequence[StageTotal], reported: Statistics) -> int | None:
    """Return the tokens of the forward steps that are neither of new prompts nor of generation."""
    prefill = total([each.prefill_tokens for each in stages])
    decode = total([each.decode_tokens for each in stages])
    return reported.recomputed(prefill, decode) if stages else None


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
