"""Find work that its role or region names: loading data, evaluation, checkpoints, updates of the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from stepprof.analysis.findings.facts import Facts, Ledger, Part
from stepprof.analysis.findings.wording import doing, inside

__all__ = ["named_work"]


@dataclass(frozen=True, slots=True)
class _Kind:
    topic: str
    names: re.Pattern[str]
    text: str
    advice: str
    assumption: str


def _words(*words: str) -> re.Pattern[str]:
    """Return a pattern for whole words of a name; words end at anything but a letter."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])")


KINDS = (
    _Kind(
        "evaluation",
        _words("eval", "evaluate", "evaluation", "validate", "validation", "testing"),
        "an evaluation took {seconds} of the step: {process} in {place}",
        "evaluate less often, or concurrently with the next rollout",
        "the evaluation runs outside of the step",
    ),
    _Kind(
        "checkpoint",
        _words("checkpoint", "checkpointing", "ckpt", "save", "save_model", "save_state", "saving"),
        "a checkpoint took {seconds} of the step: {process} in {place}",
        "save asynchronously (torch.distributed.checkpoint.async_save), or less often",
        "the checkpoint is written concurrently with the step",
    ),
    _Kind(
        "weight_sync",
        _words("weight_sync", "sync_weights", "weights_sync", "update_weights", "weight_update", "refit", "broadcast_weights", "push_weights"),
        "weights were sent to the engines for {seconds}: {process} in {place}",
        "send them in larger buckets, on the device, or concurrently with the next rollout",
        "the transfer overlaps with other work",
    ),
    _Kind(
        "data",
        _words("data", "dataloader", "dataloading", "dataset", "load_batch", "load_data", "loader", "fetch", "get_batch", "next_batch", "fetch_batch", "data_loading"),
        "{process} waited {seconds} for data in {place}",
        "load ahead in worker processes (num_workers, prefetch_factor), or prepare the data before the job",
        "the data is there when it is needed",
    ),
    _Kind(
        "data",
        _words("tokenize", "tokenise", "tokenization", "tokenisation", "tokenizing", "tokenising", "collate", "collating"),
        "{process} prepared data for {seconds} in {place}",
        "prepare the data before the job, or ahead in worker processes (num_workers, prefetch_factor)",
        "the data is ready when it is needed",
    ),
)  # fmt: skip


def named_work(ledger: Ledger) -> None:
    """Claim such work while it is on the path."""
    for kind in KINDS:
        for part in ledger.merged(
            partial(_named, kind, ledger.facts), "work", "communication", "engine", "handover"
        ):
            ledger.claim(
                part,
                part.when,
                kind.topic,
                kind.text.replace("{process}", part.process).replace("{place}", inside(part)),
                why=doing(ledger.facts, part) or "its name says so, and the step waited for it",
                advice=kind.advice,
                assumption=kind.assumption,
                without={each.process: each.when for each in ledger.facts.alike(part)},
            )


def _named(kind: _Kind, facts: Facts, part: Part) -> tuple[str, tuple[str, ...]] | None:
    """Return the process and the outermost region that has such a name; of a role: no region.

    Regions of an engine are its own: its `get_next_batch_to_run` loads no data.
    """
    is_engine = facts.timelines[part.process].process.kind == "engine"
    for depth, name in enumerate((part.role or "", *(() if is_engine else part.region))):
        if kind.names.search(name.lower()):
            return part.process, part.region[:depth]
    return None
