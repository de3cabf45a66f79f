"""The nesting of one source's regions, and the operators and kernels that they called. Times are in
milliseconds.
"""

from __future__ import annotations

import numpy as np
import pytest
from digested import MS, T0, source, spans, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report import region_tree
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Flows, Origin

WINDOW = {"kind": "window", "step": 2}


def paths(tree):
    """Return each node by its path: calls, total and self time, and its operators and kernels with
    calls and self time.
    """
    found, names = {}, []
    for number, node in enumerate(tree.nodes):
        names.append((*(names[node.parent] if number > 2 else ()), node.name))
        called = {tree.names[each.name] if each.name >= 0 else "others": (each.calls, each.own / MS) for each in [*node.ops, *node.kernels]}  # fmt: skip
        if number > 2 or node.total or called:
            found["/".join(names[-1])] = (node.calls, node.total / MS, node.own / MS, called)
    return found


def of_spans(*slices):
    return paths(digest(spans(0, *slices)).tree)


class TestSelfTime:
    def test_total_minus_children(self):
        """The self time excludes the regions inside. Time that no region covers belongs to the step."""
        assert of_spans(
            ("window", "step", 0, 100, None),
            ("region", "update", 10, 60, None),
            ("region", "forward", 20, 15, None),
            ("region", "forward", 40, 5, None),
        ) == {
            "step": (1, 100, 40, {}),
            "step/update": (1, 60, 40, {}),
            "step/update/forward": (2, 20, 20, {}),
        }

    def test_role(self):
        """The window of a role is a separate node; a window without a role is the step."""
        assert of_spans(
            ("window", "step", 0, 100, None),
            ("window", "actor", 10, 40, "actor"),
            ("region", "forward", 20, 10, "actor"),
        ) == {
            "step": (1, 100, 60, {}),
            "step/actor": (1, 40, 30, {}),
            "step/actor/forward": (1, 10, 10, {}),
        }

    def test_recursion(self):
        """A region inside itself is a nested node, so no time counts twice."""
        assert of_spans(
            ("window", "step", 0, 100, None),
            ("region", "walk", 0, 50, None),
            ("region", "walk", 10, 30, None),
            ("region", "walk", 20, 10, None),
        ) == {
            "step": (1, 100, 50, {}),
            "step/walk": (1, 50, 20, {}),
            "step/walk/walk": (1, 30, 20, {}),
            "step/walk/walk/walk": (1, 10, 10, {}),
        }

    def test_cut_at_the_window(self):
        """Only the part of a region in the window counts."""
        found = of_spans(("window", "step", 10, 50, None), ("region", "load", 0, 20, None))
        assert found == {"step": (1, 50, 40, {}), "step/load": (1, 10, 10, {})}

    def test_no_window(self):
        """Regions without a window that has a known end are in no window."""
        assert not digest(spans(0, ("region", "load", 0, 20, None))).tree.windows

    def test_regions_of_other_threads_do_not_reduce_self_time(self):
        """Regions of another thread are listed apart and do not reduce the self time of the step."""
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 0, 100, None),
            ("thread", "region", "forward", 10, 20, None),
            (("thread", "loader"), "region", "forward", 15, 60, None),
            (("thread", "loader"), "region", "read", 20, 30, None),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 80, {}),
            "step/forward": (1, 20, 20, {}),
            "other threads": (0, 60, 0, {}),
            "other threads/forward": (1, 60, 30, {}),
            "other threads/forward/read": (1, 30, 30, {}),
        }

    def test_coroutines(self):
        """Of concurrent coroutines, the one opened last has the self time. Their totals overlap."""
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 0, 100, None),
            ("thread", "region", "rollout", 10, 80, None),
            (("async", "tasks"), "region", "generate", 20, 30, None),
            (("async", "tasks"), "region", "reward", 40, 40, None),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 20, {}),
            "step/rollout": (1, 80, 20, {}),
            "step/rollout/generate": (1, 30, 20, {}),
            "step/rollout/reward": (1, 40, 40, {}),
        }

    def test_samples_of_different_lengths(self):
        """A sample that ends while a longer sample is open is not inside it, and neither are its calls."""
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 0, 100, None),
            (("async", "tasks"), "region", "rollout", 0, 90, None),
            (("async", "tasks"), "region", "sample", 1, 80, None),
            (("async", "tasks"), "region", "sample", 2, 40, None),
            (("async", "tasks"), "region", "generate", 3, 60, None),
            (("async", "tasks"), "region", "tool", 10, 20, None),
        )
        made.slices.task = np.array([-1, 0, 1, 2, 1, 2], np.int32)
        assert [*paths(digest(made).tree)] == [
            "step",
            "step/rollout",
            "step/rollout/sample",
            "step/rollout/sample/generate",
            "step/rollout/sample/tool",
        ]
        assert paths(digest(made).tree)["step/rollout/sample"][:2] == (2, 80)

    def test_coroutines_that_another_one_started(self):
        """The outermost region of a coroutine is inside another coroutine's region only if every
        region of its name is.
        """
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 0, 100, None),
            (("async", "tasks"), "region", "sample", 0, 80, None),
            (("async", "tasks"), "region", "tool", 10, 20, None),
            (("async", "tasks"), "region", "verify", 20, 5, None),
            (("async", "tasks"), "region", "verify", 90, 5, None),
        )
        made.slices.task = np.array([-1, 0, 1, 2, 3], np.int32)
        assert [*paths(digest(made).tree)] == ["step", "step/sample", "step/sample/tool", "step/verify"]

    def test_work_before_the_window_is_left_out(self):
        """Work of another thread before the step is not time of the step."""
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 50, 100, None),
            (("thread", "loader"), "region", "read", 20, 60, None),
        )
        assert paths(digest(made).tree)["other threads/read"][:3] == (1, 30, 30)

    def test_coroutines_of_another_thread(self):
        """An event loop on another thread does not reduce the self time of the step."""
        origin = Origin("spans", "s", None, 0, None, "h", 100)
        made = source(
            origin,
            ("thread", "window", "step", 0, 100, None),
            ("thread", "region", "update", 10, 80, None),
            (("async", "tasks of thread 7"), "region", "generate", 20, 30, None),
            (("async", "tasks of thread 7"), "region", "generate", 30, 40, None),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 20, {}),
            "step/update": (1, 80, 80, {}),
            "other threads": (0, 50, 0, {}),
            "other threads/generate": (2, 50, 50, {}),
        }


class TestLimits:
    def test_regions_below_the_depth_limit_are_counted(self, monkeypatch):
        """A region below the depth limit counts as part of the region around it, and a finding
        gives their number.
        """
        monkeypatch.setattr(region_tree, "MOST_DEPTH", 2)
        made = digest(spans(0, ("window", "step", 0, 100, None), *(("region", f"r{n}", n, 50 - 2 * n, None) for n in range(5))))  # fmt: skip
        assert paths(made.tree) == {
            "step": (1, 100, 50, {}),
            "step/r0": (1, 50, 2, {}),
            "step/r0/r1": (1, 48, 48, {}),
        }
        assert made.tree.folded == 3
        assert any("3 short or deeply nested regions" in finding for finding in made.findings)

    def test_names(self):
        """A tree has a limited number of nodes, and their names have a limited length."""
        many = [("region", f"{n} {'x' * 10_000}", n / 10, 0.05, None) for n in range(1500)]
        tree = digest(spans(0, ("window", "step", 0, 200, None), *many)).tree
        assert len(tree.nodes) == region_tree.MOST_NODES
        assert max(len(node.name) for node in tree.nodes) == region_tree.LONGEST_NAME
        assert sum(node.own for node in tree.nodes) == 200 * MS

    def test_slices_beyond_the_limit_are_counted(self, monkeypatch):
        """The shortest slices beyond the limit are omitted, and the tree counts them."""
        monkeypatch.setattr(region_tree, "MOST_SLICES", 3)
        many = [("region", f"r{n}", 10 * n, n + 1, None) for n in range(5)]
        tree = digest(spans(0, ("window", "step", 0, 100, None), *many)).tree
        assert [node.name for node in tree.nodes[3:]] == ["r3", "r4"]
        assert tree.folded == 3


class TestOperators:
    def test_under_the_region_of_their_thread(self):
        """An operator counts once, by its self time, in the innermost region of its thread."""
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("thread", "user_annotation", "update", 10, 80),
            ("thread", "cpu_op", "aten::linear", 20, 10),
            ("thread", "cpu_op", "aten::mm", 22, 6),
            ("thread", "user_annotation", "backward", 40, 20),
            ("thread", "cpu_op", "aten::mm", 45, 5),
            ("thread", "cpu_op", "aten::add", 95, 1),
            (("thread", "loader"), "cpu_op", "aten::stack", 45, 5),
            ("thread", "cpu_op", "aten::add", 101, 1),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 20, {"aten::add": (1, 1)}),
            "step/update": (1, 80, 60, {"aten::linear": (1, 4), "aten::mm": (1, 6)}),
            "step/update/backward": (1, 20, 20, {"aten::mm": (1, 5)}),
            "other threads": (0, 0, 0, {"aten::stack": (1, 5)}),
        }

    def test_region_inside_an_operator(self):
        """The self time of an operator excludes a region inside it, as with activation checkpointing."""
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("thread", "user_annotation", "update", 0, 100),
            ("thread", "cpu_op", "CheckpointFunction", 10, 50),
            ("thread", "user_annotation", "block", 20, 30),
            ("thread", "cpu_op", "aten::mm", 25, 20),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 0, {}),
            "step/update": (1, 100, 70, {"CheckpointFunction": (1, 20)}),
            "step/update/block": (1, 30, 30, {"aten::mm": (1, 20)}),
        }

    def test_operators_are_not_given_to_coroutines(self):
        """The trace does not show which coroutine called an operator, so the region is not known."""
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("async", "stepprof", "reward", 10, 50, {"kind": "region", "step": 2}),
            ("thread", "user_annotation", "rewards", 5, 60),
            ("thread", "cpu_op", "aten::mm", 20, 5),
            ("thread", "cpu_op", "aten::mm", 62, 1),
        )
        found = paths(digest(made).tree)
        assert found["region not known"][3] == {"aten::mm": (1, 5)}
        assert found["step/rewards"][3] == {"aten::mm": (1, 1)}

    def test_no_regions(self):
        """In a trace without regions, operators of the busiest thread belong to the step."""
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("thread", "cpu_op", "aten::mm", 20, 5),
            (("thread", "loader"), "cpu_op", "aten::stack", 20, 1),
        )
        assert paths(digest(made).tree) == {
            "step": (1, 100, 100, {"aten::mm": (1, 5)}),
            "other threads": (0, 0, 0, {"aten::stack": (1, 1)}),
        }

    def test_operators_of_autograd_belong_to_the_waiting_thread(self):
        """Operators on a thread of autograd belong to the region of the thread that waits for it."""
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("thread", "user_annotation", "backward", 10, 50),
            (("thread", "autograd"), "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 10),
            (("thread", "autograd"), "cpu_op", "aten::mm", 22, 6),
        )
        found = paths(digest(made).tree)
        assert found["step/backward"][3] == {
            "autograd::engine::evaluate_function: MmBackward0": (1, 4),
            "aten::mm": (1, 6),
        }

    def test_less_costly_operators_are_summed_up(self):
        """The costliest operators of a region are named, and the others are summed up."""
        ops = [("thread", "cpu_op", f"op{n}", 2 * n, (n + 1) / 20) for n in range(20)]
        made = trace(0, ("async", "stepprof", "step", 0, 100, WINDOW), ("thread", "user_annotation", "all", 0, 90), *ops)  # fmt: skip
        called = paths(digest(made).tree)["step/all"][3]
        assert list(called) == [*(f"op{n}" for n in range(19, 7, -1)), "others"]
        assert called["others"] == (8, pytest.approx(sum(range(1, 9)) / 20))


class TestKernels:
    def test_under_the_region_that_launched_them(self):
        """A kernel belongs to the region that launched it, also if it runs later. Without a flow
        from its launch, the region is unknown.
        """
        made = trace(
            0,
            ("async", "stepprof", "step", 0, 100, WINDOW),
            ("thread", "user_annotation", "forward", 10, 20),
            ("thread", "user_annotation", "backward", 40, 20),
            ("stream", "kernel", "gemm", 45, 10),
            ("stream", "kernel", "lost", 56, 3),
        )
        thread, stream = (
            next(at for at, track in enumerate(made.tracks) if track.kind == kind)
            for kind in ("thread", "stream")
        )
        made.flows = Flows(
            np.array([T0 + 15 * MS]),
            np.array([thread], np.int32),
            np.array([T0 + 45 * MS]),
            np.array([stream], np.int32),
            np.zeros(1, np.int32),
        )
        found = paths(digest(made).tree)
        assert found["step/forward"][3] == {"gemm": (1, 10)}
        assert found["step/backward"][3] == {}
        assert found["region not known"][3] == {"lost": (1, 3)}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(-10, 110), st.integers(0, 60)),
        max_size=25,
    ),
)
def test_the_sum_is_the_step(windows, regions):
    """The self times of regions and step add up to the windows, for any regions, also if they cross."""
    origin = Origin("spans", "s", None, 0, None, "h", 100)
    rows = [("thread", "window", f"w{at}", start, length, f"w{at}") for at, (start, length) in enumerate(windows)]  # fmt: skip
    rows += [
        ("thread" if on_thread else ("async", "tasks"), "region", name, start, length, None)
        for name, on_thread, start, length in regions
    ]
    tree = digest(source(origin, *rows)).tree
    covered = {at for start, length in windows for at in range(start, start + length)}
    if tree is None or not tree.windows:
        assert not covered
        return
    own = [node.own for node in tree.nodes]
    assert min(own) >= 0
    assert sum(own) == tree.nodes[0].total == len(covered) * MS
    for node in tree.nodes[3:]:
        assert node.own <= node.total <= tree.nodes[0].total
