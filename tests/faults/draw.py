"""Draw plans, small ones first, so that a failing plan shrinks to its relevant parts."""

from __future__ import annotations

from hypothesis import strategies as st

from faults.plan import Act, Block, EnginePlan, Fault, Fork, Plan

__all__ = ["plans"]

ERRORS = (
    "unknown",
    "unreachable",
    "unconfigured",
    "busy",
    "dead",
    "owes stop",
    "value",
    "timeout",
    "cancelled",
    "exit",
)
ACTS = ("pause", "release", "die", "restart", "steal", "give back", "detach", "attach")


def faults() -> st.SearchStrategy[Fault]:
    what = st.sampled_from(("ok", "slow", "late", "hang", "raise", "raise", "die", "twice"))
    return st.builds(Fault, what, st.sampled_from(ERRORS), st.booleans())


def engines() -> st.SearchStrategy[EnginePlan]:
    verbs = st.sampled_from(
        ("start", "stop", "arm", "start", "stop", "abort", "clock", "close", "expand", "announce", "wait")
    )
    of_verbs = st.dictionaries(verbs, st.lists(faults(), min_size=1, max_size=3).map(tuple), max_size=3)
    return st.builds(
        EnginePlan,
        role=st.sampled_from(("rollout", "rollout", "reward")),
        kind=st.sampled_from(("simulated", "simulated", "simulated", "rank", "spans")),
        how=st.sampled_from(("object", "object", "callable", "router")),
        result=st.sampled_from(("file", "file", "nothing", "partial", "capped", "later")),
        home=st.booleans(),
        inside=st.sampled_from((False,) * 7 + (True,)),
        faults=of_verbs.map(lambda found: tuple(found.items())),
    )


acts = st.builds(Act, st.sampled_from(ACTS), st.integers(0, 2))


def blocks(inner: st.SearchStrategy, depth: int) -> st.SearchStrategy[Block]:
    return st.builds(
        Block,
        step=st.sampled_from((2, 3, 4, 5, 1, 6)),
        role=st.sampled_from(("rollout", "rollout", "reward", None)),
        form=st.sampled_from(
            ("with", "with", "start", "decorated", "thread", "left open", "cancelled", "sync")
        ),
        raises=st.sampled_from((False, False, False, True)),
        ops=st.lists(inner, max_size=2).map(tuple) if depth else st.lists(acts, max_size=1).map(tuple),
    )


def ops(depth: int = 2) -> st.SearchStrategy:
    if not depth:
        return st.one_of(acts, blocks(acts, 0))
    inner = ops(depth - 1)
    few = st.lists(inner, min_size=1, max_size=2).map(tuple)
    return st.one_of(blocks(inner, depth), blocks(inner, depth), acts, st.builds(Fork, few, few))


def plans() -> st.SearchStrategy[Plan]:
    several = st.lists(ops(), min_size=1, max_size=4).map(tuple)
    return st.builds(
        Plan,
        engines=st.lists(engines(), min_size=1, max_size=3).map(tuple),
        ops=several,
        coroutine=st.booleans(),
        max_seconds=st.sampled_from((None, None, None, 0.02)),
        shutdown=st.sampled_from((0.15, None)),
        again=st.one_of(st.none(), st.none(), st.none(), several),
    )
