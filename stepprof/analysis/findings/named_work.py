"""Find work that its role or region names: loading data, evaluation, checkpoints, updates of the weights."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import (
    DATA_IS_THERE,
    NEXT_BATCH,
    doing,
    having_of,
    inside,
    load_advice,
    rest_of,
)


@dataclass(frozen=True, slots=True)
class _Kind:
    topic: str
    names: re.Pattern[str]
    """Matches the words of a name after its last dot, slash or colon, joined by `_`."""
    text: str
    advice: str
    assumption: str
    computes: bool = False
    """Whether such work may be operators. Otherwise a region that consists of operators has another purpose than its name says."""
    engines: bool = False
    """Whether only a job with engines does such work. Without them the name means something else: an optimizer updates weights too."""


def _names(*names: str) -> re.Pattern[str]:
    """Return a pattern for whole names.

    A name with further words may be something else: `evaluate_actions` computes log-probabilities, `checkpoint_forward` is a
    part of the training, and so is `data_parallel_forward`.
    """
    return re.compile(rf"(?:(?:run|do)_)?(?:{'|'.join(names)})(?:_(?:step|loop))?")


_SAVE = (
    "a checkpoint took {seconds} of the step: {process} in {place}",
    "save asynchronously (torch.distributed.checkpoint.async_save), or less often",
    "the checkpoint is written concurrently with the step",
)
KINDS = (
    _Kind(
        "evaluation",
        _names("eval", "evaluate", "evaluation", "validate", "validation", "val", "testing", "(eval|evaluate|evaluation|validate|validation|val)_(model|set|epoch|batch)"),
        "an evaluation took {seconds} of the step: {process} in {place}",
        "evaluate less often, or concurrently with other work",
        "the evaluation runs outside of the step",
        computes=True,
    ),
    _Kind("checkpoint", _names("checkpoint", "checkpointing", "ckpt"), *_SAVE),
    _Kind(
        "checkpoint",
        _names("(save|saving)(_(actor|critic|model|policy|full|final|hf))?(_(checkpoint|checkpoints|ckpt|model|state|state_dict|weights))?"),
        *_SAVE,
        computes=True,
    ),
    _Kind(
        "weight_sync",
        _names("weights?_sync", "sync_(model_)?weights?", "broadcast_weights?", "push_weights?"),
        "weights were transferred for {seconds}: {process} in {place}",
        "send them in larger buckets, on the device, or concurrently with other work",
        "the transfer overlaps with other work",
        computes=True,
    ),
    _Kind(
        "weight_sync",
        _names("update_weights?", "weights?_update", "refit"),
        "weights were updated for {seconds}: {process} in {place}",
        "if they are sent to the engines there: in larger buckets, on the device, or concurrently with other work",
        "the update overlaps with other work",
        computes=True,
        engines=True,
    ),
    _Kind(
        "data",
        _names("data", "dataset", "(data_?)?(loader|loading)", "data_(fetch|wait)", "fetch", "(load|get|next|fetch|wait(_for)?)_(next_)?(batch|data)", "batch_fetch"),
        "{process} spent {seconds} on data in {place}",
        "",  # `load_advice`
        DATA_IS_THERE,
    ),
    _Kind(
        "data",
        _names("tokeni[sz](e|ing|ation)", "collate", "collating"),
        "{process} prepared data for {seconds} in {place}",
        "prepare the data before the job, or ahead in worker processes (num_workers, prefetch_factor)",
        "the data is ready when it is needed",
        computes=True,
    ),
)  # fmt: skip


def named_work(ledger: Ledger) -> None:
    """Claim such work while it is on the path."""
    for kind in KINDS:
        if kind.engines and not ledger.facts.engine_roles:
            continue
        for part in ledger.merged(
            partial(_named, kind, ledger.facts), "work", "communication", "engine", "handover"
        ):
            if not kind.computes and _computes(ledger.facts, part):
                continue
            place = _narrowed(ledger.facts, part) if kind.topic == "data" else part
            name = part.region[-1] if part.region else part.role
            having = having_of(ledger.facts, part, name) if name else None
            rest = rest_of(ledger, part)
            ledger.claim(
                place,
                part.when,
                kind.topic,
                kind.text.replace("{process}", part.process).replace("{place}", inside(place))
                + (having.phrase() if having else "")
                + rest,
                why="; ".join(
                    filter(
                        None,
                        [
                            "its name says so",
                            having.evidence() if having else None,
                            doing(ledger.facts, part) or "the step waited for it",
                        ],
                    )
                ),
                advice=kind.advice or load_advice(ledger.facts, part),
                assumption=kind.assumption + (", without what other findings have" if rest else ""),
                without=lambda each: each.when,
                of_host=kind.topic == "data",
            )


def _named(kind: _Kind, facts: Facts, part: Part) -> tuple[str, tuple[str, ...]] | None:
    """Return the process and the outermost region that has such a name; of a role: no region.

    Regions of an engine are its own: its `get_next_batch_to_run` loads no data.
    """
    is_engine = facts.timelines[part.process].process.kind == "engine"
    for depth, name in enumerate((part.role or "", *(() if is_engine else part.region))):
        if _is_named(kind, name) or (kind.topic == "data" and name.startswith(NEXT_BATCH)):
            return part.process, part.region[:depth]
    return None


def _is_named(kind: _Kind, name: str) -> bool:
    last = re.split("[./:]", name.lower())[-1]
    return kind.names.fullmatch("_".join(re.findall("[a-z]+", last))) is not None


def is_evaluation(role: str | None) -> bool:
    """Return whether the name of a role says that it is an evaluation."""
    return any(kind.topic == "evaluation" and _is_named(kind, role or "") for kind in KINDS)


MOST = 0.9
"""The place of a part is an inner region that has at least this share of the part's time."""


def _narrowed(facts: Facts, part: Part) -> Part:
    """Return the part with the innermost region in which it spent nearly all of its time."""
    times: Counter[tuple[str, ...]] = Counter()
    for start, end, role, region in facts.timelines[part.process].stretches:
        if role == part.role and region[: len(part.region)] == part.region:
            spent = part.when.clip(start, end).total
            for depth in range(len(part.region), len(region) + 1):
                times[region[:depth]] += spent
    inner = [region for region, time in times.items() if time >= MOST * part.when.total]
    return replace(part, region=max(inner, key=len, default=part.region))


def _computes(facts: Facts, part: Part) -> bool:
    """Return whether operators or kernels ran for most of a part."""
    computing, _, _ = facts.timelines[part.process].process.working()
    return 2 * (part.when & computing).total > part.when.total
