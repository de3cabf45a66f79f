"""The layout of the package: no import cycle between its modules, and a test file for each of them.

The direction of the imports is in pyproject.toml, as contracts of import-linter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from module_graph import PACKAGE, Imports, finished, imported, imports, modules

TESTS = Path(__file__).parents[1]

NOT_TESTED = {
    **dict.fromkeys(
        ("instrument/ports", "recording/engine_ports", "recording/session_port"), "protocols: no code runs"
    ),
    "version": "one constant",
}
"""Modules without code to test, with the reason."""

TESTED_THROUGH = {
    "analysis/findings/test_catalogue.py": "analysis/findings/facts analysis/findings/ledger analysis/findings/serial analysis/findings/signs analysis/findings/wording analysis/report/nesting",
    "analysis/findings/test_straggler.py": "analysis/findings/other_steps analysis/findings/peers",
    "analysis/report/test_compare.py": "analysis/report/changes analysis/report/like_processes",
    "analysis/report/test_combine.py": "analysis/report/idle analysis/report/skew analysis/report/totals",
    "analysis/data/test_export.py": "cli/commands/export",
    "analysis/data/test_run.py": "analysis/data/marked analysis/data/spans analysis/data/table",
    "analysis/report/test_neighbourhood.py": "analysis/report/cause_times",
    "analysis/report/test_step_times.py": "analysis/report/visits",
    "analysis/report/test_terminal.py": "analysis/report/terminal_tables",
    "analysis/test_recording_cost.py": "analysis/run_windows",
    "analysis/timeline/test_clocks.py": "analysis/timeline/comparisons",
    "analysis/timeline/test_find.py": "analysis/timeline/file_names analysis/timeline/occurrence analysis/timeline/source_selection",
    "analysis/timeline/test_kineto.py": "analysis/timeline/counters analysis/timeline/event_kinds analysis/timeline/event_pairs analysis/timeline/npu analysis/timeline/tracks",
    "analysis/timeline/test_merge.py": "analysis/timeline/ray_workers",
    "analysis/report/test_traces_of_others.py": "analysis/report/marked analysis/timeline/recording_options",
    "analysis/timeline/test_perfetto.py": "analysis/timeline/lanes analysis/timeline/ordering",
    "analysis/timeline/test_raw.py": "analysis/timeline/header analysis/timeline/salvage",
    "analysis/timeline/test_span_sources.py": "run/occurrence_spans",
    "backends/memory/test_backend.py": "config/options/memory",
    "backends/nsys/test_reports.py": "config/options/nsys",
    "backends/torch/test_backend.py": "backends/other_npu_profiler backends/process_slot backends/torch/export config/options/torch",
    "truth/test_requests.py": "analysis/report/requests",
    "trial/test_demo.py": "cli/commands/demo cli/commands/show cli/common cli/demo_launcher cli/engine_table cli/make_outputs cli/memory_tables cli/window_table",
    "cli/commands/test_merge.py": "cli/merge_options",
    "cli/commands/test_report.py": "cli/trace_options",
    "cli/commands/test_spans.py": "analysis/span_stats",
    "cli/commands/test_status.py": "cli/process_table",
    "cli/test_foreign.py": "analysis/timeline/named_traces analysis/trace_check",
    "cli/test_main.py": "cli/commands/check cli/commands/ls formatting",
    "config/test_config.py": "config/options/schedule config/policy",
    "diagnosis/test_diagnosis.py": "analysis/findings/half_batch",
    "doctor/test_backends.py": "cli/commands/doctor",
    "formats/test_npu_analysis.py": "formats/npu_folder",
    "instrument/test_region.py": "instrument/span_recorder",
    "instrument/test_step.py": "instrument/state",
    "integrations/test_autoload.py": "integrations/bootstrap/sitecustomize",
    "real/integrations/test_lightning.py": "integrations/accelerate",
    "real/integrations/test_trl.py": "integrations/transformers integrations/trl",
    "real/neighbours/test_workers.py": "host/worker_packages",
    "real/npu/test_npu_analysing.py": "cli/commands/analyse",
    "real/npu/test_npu_recording.py": "backends/npu/api backends/npu/backend backends/npu/ranges backends/npu/session",
    "real/ray/test_ray_attach.py": "remote/ray/kind remote/ray/listening",
    "real/ray/test_ray_engines.py": "remote/ray/driver",
    "real/ray/test_ray_nodes.py": "remote/ray/clock remote/ray/files",
    "real/ray/test_ray_run.py": "integrations/ray",
    "real/vllm/test_vllm_plugin.py": "integrations/vllm",
    "recording/evidence/test_collector.py": "recording/evidence/garbage",
    "recording/control/test_live_status.py": "cli/commands/trigger run/reachable_steps run/status run/trigger",
    "follow/test_follower.py": "follow/on_complete follow/uploads",
    "follow/test_otel.py": "config/options/otel",
    "follow/test_watcher.py": "config/options/watch",
    "recording/control/test_request_inbox.py": "host/own_files",
    "recording/test_leftover_files.py": "host/atomic_files",
    "recording/test_local_target.py": "backends/null recording/backend_pool recording/capture recording/capture_controller recording/export/tracker",
    "recording/export/test_executor.py": "recording/export/child",
    "recording/test_rank_discovery.py": "recording/selector recording/visit_counter",
    "recording/test_session.py": "recording/lifecycle recording/misuse recording/oom_snapshots",
    "remote/core/test_blocked_loop.py": "remote/core/engine_state remote/core/engine_target",
    "remote/core/test_device_leases.py": "remote/core/engine_backends",
    "remote/core/test_many.py": "remote/ray/calls",
    "remote/core/test_window_group.py": "remote/attach remote/core/announcer remote/core/change_log remote/core/manifest_entries remote/core/membership remote/core/registry remote/engine",
    "remote/http/test_client.py": "remote/http/reply remote/http/wire",
    "remote/http/test_kind.py": "remote/engine_process remote/sglang/server_link",
    "remote/ray/inside/test_entry.py": "remote/ray/inside/follower",
    "remote/sglang/test_request.py": "config/options/engine",
    "remote/vllm/test_driver.py": "remote/vllm/link remote/vllm/object_link",
}
"""Modules that no test imports. The test file given here runs them."""


def cycles(graph: Imports) -> list[list[str]]:
    """Return the groups of modules that reach each other, the strongly connected
    components (Kosaraju's algorithm).
    """
    reverse: Imports = {module: set() for module in graph}
    for module, targets in graph.items():
        for each in targets:
            reverse[each].add(module)
    seen: set[str] = set()
    order = [each for module in graph for each in finished(graph, module, seen)]
    seen = set()
    groups = [finished(reverse, module, seen) for module in reversed(order)]
    return sorted(sorted(group) for group in groups if len(group) > 1)


class TestCycles:
    @pytest.mark.parametrize(
        ("graph", "found"),
        [
            ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
            ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
            (
                {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}},
                [["a", "b", "c"], ["d", "e"]],
            ),
        ],
    )
    def test_groups_are_found(self, graph, found) -> None:
        """Modules that reach each other form a group."""
        assert cycles(graph) == found

    def test_no_modules_import_each_other(self) -> None:
        """No two modules import each other, directly or through others. Imports for
        types and inside functions count.
        """
        graph = imports()
        assert len(graph) > 300
        assert "stepprof.instrument.context" in graph["stepprof.instrument.step"]
        assert cycles(graph) == []


class TestFiles:
    def test_each_module_has_one(self) -> None:
        """Each module has a test file of its name, is imported by a test file of its
        folder, or is in one of the lists.
        """
        listed = {*NOT_TESTED, *(module for parts in TESTED_THROUGH.values() for module in parts.split())}
        assert sorted(set(untested()) - listed) == []

    def test_the_lists_are_current(self) -> None:
        """The lists name only existing modules without a test file of their own, and each once."""
        listed = [*NOT_TESTED, *(module for parts in TESTED_THROUGH.values() for module in parts.split())]
        assert sorted(set(listed) - set(untested())) == []
        assert len(listed) == len(set(listed))
        assert [path for path in TESTED_THROUGH if not (TESTS / path).is_file()] == []


def untested() -> Iterator[str]:
    """Yield the modules that have no test file of their name, and that no test
    file of their folder imports.
    """
    files = modules()
    seen = {folder: imported_in(folder) for folder in TESTS.rglob("*") if folder.is_dir()}
    seen[TESTS] = imported_in(TESTS)
    for name, path in files.items():
        place = path.relative_to(PACKAGE).with_suffix("")
        folder = TESTS / place.parent
        if path.stem.startswith("__") or (folder / f"test_{place.name}.py").is_file():
            continue
        if name not in seen.get(folder, set()):
            yield place.as_posix()


def imported_in(folder: Path) -> set[str]:
    """Return the modules that the test files of a folder import."""
    return {each for path in folder.glob("test_*.py") for each in imported(path)}
