"""Estimate the cost of expensive configurations.

Measured with torch 2.13: 1.3 kB of trace per op, 4.3 kB with every option, and 3.9 kB per op in
host memory until the export. The number of ops of a step is unknown in advance. Every message
states its assumption: 100,000 per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.config.policy import Policy

OPS_PER_STEP = 100_000
TRACE_BYTES_PER_OP = 1_300
TRACE_BYTES_PER_OP_ALL_OPTIONS = 4_300
HELD_BYTES_PER_OP = 3_900
JOINED_STEPS_WITHOUT_WARNING = 10

_ASSUMPTION = f"assuming {OPS_PER_STEP:,} ops per rank and step"


def heavy_combinations(policy: Policy) -> Iterator[str]:
    """Yield a line for each expensive combination in `policy`."""
    if policy.steps.is_none or policy.ranks.is_none:
        return
    if "torch" in policy.backend:
        yield from _torch(policy)
    if policy.engine.with_stack and policy.engine.bound is None:
        width = "every replica" if policy.ranks.all else "the engine"
        yield (
            f'engine.with_stack with engine.max_iterations = "none": {width} records with stacks until the window ends, about '
            f"{_size(OPS_PER_STEP * TRACE_BYTES_PER_OP_ALL_OPTIONS)} of trace for each {OPS_PER_STEP:,} ops. Some engines also record while they are idle "
            "(measured: 9.8 GB of memory in 10 idle seconds). Set engine.max_iterations = 32, or leave engine.with_stack out"
        )


def shared_device(policy: Policy) -> Iterator[str]:
    """Yield a line if a role's process and its engine would record one Ascend device at the same time,
    and one if an engine's `devices` have no effect.
    """
    if policy.steps.is_none or policy.ranks.is_none:
        return
    if policy.engine.devices and "npu" not in (policy.engine.backend or ()):
        yield 'engine.devices are NPUs, but the engine does not record them; set engine.backend = "npu", or leave them out'
    if "npu" in policy.backend and "npu" in (policy.engine.backend or ()):
        yield (
            'backend = "npu" for this process and for the engine: CANN allows one recorder per device at a time; if the two share one, '
            'set backend = "null" with engine.backend = "npu" for this role, or engine.backend = "torch"'
        )


def _torch(policy: Policy) -> Iterator[str]:
    options = policy.torch
    stacks = options.with_stack or options.with_modules
    per_op = TRACE_BYTES_PER_OP_ALL_OPTIONS if stacks else TRACE_BYTES_PER_OP
    trace, held = OPS_PER_STEP * per_op, OPS_PER_STEP * HELD_BYTES_PER_OP
    cost = f"each rank writes up to {_size(trace)} per step before compression, and holds {_size(held)} of host memory until the export ({_ASSUMPTION})"
    if policy.ranks.all and stacks:
        option = "torch.with_stack" if options.with_stack else "torch.with_modules"
        yield f'{option} with ranks = "all": {cost}; set ranks = "0", or leave {option} out'
    if policy.ranks.all and (policy.steps.all or 1 in policy.steps.periods):
        yield f'steps = "{policy.steps}" with ranks = "all": {cost}; set steps = "every 100", or ranks = "0"'
    if policy.join_steps and (longest := policy.steps.longest_run()) > JOINED_STEPS_WITHOUT_WARNING:
        run, total = (
            ("all steps", "")
            if longest == float("inf")
            else (f"{longest:,.0f} steps", f": {_size(int(longest) * held)}")
        )
        yield (
            f'join_steps with steps = "{policy.steps}": one capture over {run} holds {_size(held)} of host memory for each of them until it ends{total} '
            f"({_ASSUMPTION}); select at most {JOINED_STEPS_WITHOUT_WARNING} consecutive steps, or leave join_steps out"
        )


def _size(count: int) -> str:
    for unit, scale in (("TB", 10**12), ("GB", 10**9)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 10**6:.3g} MB"
