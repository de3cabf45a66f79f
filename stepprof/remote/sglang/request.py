"""Build the request for an SGLang engine, and check it before it is sent.

SGLang checks almost nothing. An activity that its build lacks, a capture by stage without a limit,
or a variable of its environment ends the scheduler, and with it the process that holds the engine.
So these are refused here. Every option is sent, because SGLang's defaults record stacks and
shapes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepprof.log import logger
from stepprof.redaction.messages import quoted
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_backends import records

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import EngineWindow

DEADLY_STAGES_SINCE = (0, 5, 14)
"""From this version on SGLang's capture by stage corrupts its memory; see `stepprof.remote.sglang.stages`."""

EXACT_SINCE = (0, 5, 16)
"""Before this version, a limit of N steps recorded N - 1 of them."""

NEVER = 1 << 62
"""The number of a forward step that no engine reaches."""

MOST_WORKERS = 1 << 16
"""Maximum number of processes of one engine, whatever it reports."""

_OWN = ("output_dir", "num_steps", "activities")
"""The arguments that every version since 0.4.6 accepts."""

_ACTIVITIES = {
    "cpu": {"cpu": "CPU"},
    "cuda": {"cpu": "CPU", "cuda": "GPU"},
    "npu": {"cpu": "CPU", "cuda": "GPU", "privateuse1": "GPU"},  # torch_npu replaces torch's CUDA
    "xpu": {"cpu": "CPU", "xpu": "XPU"},
}
"""For each kind of device: SGLang's names of the activities in a configuration."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of an engine."""

    name: str
    version: str = ""
    device: str | None = None
    sleep_on_idle: bool = False
    ranks: int = 1
    """Processes of one data-parallel replica: tensor times pipeline parallel."""
    tp: int = 1
    replicas: int = 1
    """Data-parallel replicas inside the engine; 1 if they consist of its tensor-parallel ranks (`dp_attention`)."""
    fields: frozenset[str] = field(default=frozenset(_OWN))
    """The arguments that its start accepts."""
    answers: bool = True
    """Whether its stop is answered when the files are written; not so in 0.4.6."""
    users: frozenset[int] | None = None
    """The users whose files count as the engine's (`stepprof.remote.core.engine_files.writers`);
    None: the files of every user.
    """

    @classmethod
    def of(
        cls, name: str, args: Mapping[str, Any], version: str, fields: frozenset[str], **more: Any
    ) -> Facts:
        """Read SGLang's server arguments. Raises EngineFailure for more processes than an engine can have."""

        def whole(key: str) -> int:
            value = args.get(key)
            return min(value, MOST_WORKERS + 1) if isinstance(value, int) and value > 0 else 1

        device = args.get("device")
        tp = whole("tp_size")
        facts = cls(
            name=name,
            version=quoted(version, 60),
            device=None if device is None else quoted(device, 60).partition(":")[0],
            sleep_on_idle=bool(args.get("sleep_on_idle")),
            tp=tp,
            ranks=tp * whole("pp_size"),
            replicas=1 if args.get("enable_dp_attention") else whole("dp_size"),
            fields=fields,
            **more,
        )
        if facts.workers > MOST_WORKERS:
            raise EngineFailure(f"{name} says that it has more than {MOST_WORKERS} processes", "unconfigured")
        return facts

    @property
    def workers(self) -> int:
        """Return how many processes write a trace."""
        return self.ranks * self.replicas

    def is_since(self, version: tuple[int, int, int]) -> bool:
        """Return whether it is of that version or newer; an unreadable version counts as newer."""
        numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", self.version)
        return numbers is None or tuple(map(int, numbers.groups())) >= version


@dataclass(frozen=True, slots=True)
class Request:
    """One capture, in SGLang's terms."""

    fields: Mapping[str, Any]
    by_stage: bool = False
    """Whether the engine writes a file for each stage; a stage that was not reached stays armed."""
    cut: bool = False
    """Whether it writes one file, which is cut into its stages afterwards."""
    bound: int | None = None
    """The number of forward steps after which the engine ends it: of each stage, or of both if the file is cut."""
    backends: tuple[str, ...] = ("torch",)
    """The profilers that it records with."""

    @property
    def writes_traces(self) -> bool:
        """Whether each of its processes leaves a trace."""
        return "torch" in self.backends or "npu" in self.backends

    @classmethod
    def of(cls, window: EngineWindow, facts: Facts, folder: Path) -> Request:
        """Return the request for a window.

        Raises:
            EngineFailure: this engine cannot do that, or would crash; nothing was sent.
        """
        options = window.options
        if options.delay_iterations:
            raise EngineFailure(
                f"{facts.name}: delay_iterations = {options.delay_iterations} cannot be applied: SGLang counts forward steps from its own "
                "start and does not report how many it has run; leave it out, or enter the window later",
                "unconfigured",
            )
        # an engine that does not answer a start with a limit gets one only if the configuration
        # asks for it
        bound = options.bound if facts.answers or options.max_iterations is not None else None
        backends = records(options)
        _check_backends(backends, facts, by_stage=options.by_stage)
        cut = options.by_stage and facts.is_since(DEADLY_STAGES_SINCE)
        by_stage = options.by_stage and not cut
        if by_stage and bound is None:
            raise EngineFailure(
                f'{facts.name}: max_iterations = "none" with by_stage: the capture by stage of SGLang {facts.version} kills its scheduler without a '
                "bound; give a number, or leave by_stage out",
                "unconfigured",
            )
        fields: dict[str, Any] = {
            "output_dir": str(folder),
            "activities": _activities(options.activities, facts, backends),
            "with_stack": options.with_stack,
            "record_shapes": options.record_shapes,
            "profile_by_stage": by_stage,
            "profile_id": window.stem.replace("/", "-"),
        }
        if bound is not None:
            fields["num_steps"] = bound if by_stage or facts.is_since(EXACT_SINCE) else bound + 1
        _check(facts, fields)
        known = {key: value for key, value in fields.items() if key in facts.fields}
        return cls(known, by_stage=by_stage, cut=cut, bound=bound, backends=backends)

    @classmethod
    def clearing(cls, facts: Facts, folder: Path) -> Request:
        """Return the smallest possible capture: started and stopped at once, it resets what an earlier request left armed."""
        fields = {
            "output_dir": str(folder),
            "activities": ["CPU"],
            "with_stack": False,
            "record_shapes": False,
            "profile_by_stage": False,
        }
        return cls({key: value for key, value in fields.items() if key in facts.fields})

    @classmethod
    def of_a_step_that_never_comes(cls, facts: Facts, folder: Path) -> Request:
        """Return a request that begins nothing: SGLang refuses it while it records, and otherwise
        notes it. The next stop removes the note.
        """
        smallest = cls.clearing(facts, folder).fields
        return cls({**smallest, "start_step": NEVER})


_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def _check_backends(backends: tuple[str, ...], facts: Facts, *, by_stage: bool) -> None:
    """Refuse options that would kill the engine, or leave indistinguishable files."""
    beside_torch = [name for name in backends if name in ("nsys", "memory")]
    if not beside_torch:
        return
    name = beside_torch[0]
    problem = None
    if facts.device != "cuda":
        where = f"runs on {facts.device or 'a device that it does not name'}, where its start would kill it"
        problem = f'{where}; leave it at engine.backend = "torch"'
    elif by_stage:
        problem = "cannot record it by stage; leave by_stage out"
    elif name == "memory" and facts.workers != facts.tp:
        problem = (
            f"has {facts.workers} processes, and the names of its snapshots distinguish only {facts.tp} of them; "
            'leave it at engine.backend = "torch"'
        )
    elif name == "memory" and any(
        "cudaMallocAsync" in os.environ.get(variable, "") for variable in _ALLOCATOR
    ):
        problem = f"would crash: the allocator cudaMallocAsync ({' or '.join(_ALLOCATOR)}) keeps no history"
    if problem is not None:
        raise EngineFailure(f'{facts.name}: engine.backend = "{name}": it {problem}', "unconfigured")


def _activities(wanted: object, facts: Facts, backends: tuple[str, ...]) -> list[str]:
    """Return SGLang's names of the activities; by default those of the device."""
    if "nsys" in backends:
        return ["CUDA_PROFILER"]
    snapshot = ["MEM"] if "memory" in backends else []
    if backends == ("memory",):
        return snapshot
    there = _ACTIVITIES.get(facts.device or "cpu", _ACTIVITIES["cpu"])
    names = [str(name).lower() for name in wanted] if isinstance(wanted, (list, tuple)) else []
    missing = [name for name in names if name not in there]
    if missing:
        raise EngineFailure(
            f"{facts.name} runs on {facts.device or 'a device that it does not name'}, which cannot record {', '.join(missing)} (such a "
            f"request would kill it); omit activities, or name some of: {', '.join(there)}",
            "unconfigured",
        )
    return [*dict.fromkeys(there[name] for name in names or there), *snapshot]


def _check(facts: Facts, fields: Mapping[str, Any]) -> None:
    """Refuse options that an old version would ignore, if that is not harmless."""
    if fields["profile_by_stage"] and "profile_by_stage" not in facts.fields:
        raise EngineFailure(
            f"{facts.name}: SGLang {facts.version or 'of this version'} cannot record by stage; leave by_stage out",
            "unconfigured",
        )
    if not fields["with_stack"] and "with_stack" not in facts.fields:
        raise EngineFailure(
            f"{facts.name}: SGLang {facts.version or 'of this version'} records Python stacks whether asked to or not, and they fill the memory "
            "of a host while its engine idles; set with_stack = true to accept that, or use 0.4.7 or newer",
            "unconfigured",
        )
    if "num_steps" in fields and not facts.answers:
        raise EngineFailure(
            f"{facts.name}: SGLang {facts.version or 'of this version'} answers a start with max_iterations only when the capture is over; "
            "omit max_iterations, or use 0.4.7 or newer",
            "unconfigured",
        )
    if fields["record_shapes"] and "record_shapes" not in facts.fields:
        _warn_of_shapes(facts.name, facts.version)
    if not facts.sleep_on_idle:
        _warn_of_spinning(facts.name, bool(fields["with_stack"]))


@functools.cache
def _warn_of_shapes(name: str, version: str) -> None:
    logger.warning("engine.limited", name=name, reason=f"SGLang {version} cannot")


@functools.cache
def _warn_of_spinning(name: str, with_stack: bool) -> None:
    """Warn once for each engine, because it has many windows."""
    cost = "a gigabyte of its memory each second, since stacks are on" if with_stack else "some 5 MB a second"
    logger.warning(
        "engine.idle_polling",
        name=name,
        reason=f"SGLang's scheduler polls without a pause while it has nothing to do, and a capture keeps every poll: {cost}",
        cure="start the engine with sleep_on_idle=True (--sleep-on-idle)",
    )


def refuse_environment() -> None:
    """Refuse an engine of this process if a variable of its environment makes each start kill it. Raises EngineFailure."""
    if os.environ.get("SGLANG_PROFILE_V2", "").strip().lower() in ("1", "true", "yes", "y", "on", "t"):
        raise EngineFailure(
            "SGLANG_PROFILE_V2 is set: with it, the first start or stop kills SGLang's scheduler; unset it where the engine is started",
            "unconfigured",
        )
