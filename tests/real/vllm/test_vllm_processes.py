"""Test engines that die, that are built in other ways, or that consist of several processes. Each
test runs a script in its own process, because the script may end it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driven import read_entries
from vllm_driven import Trace

Run = Callable[..., Any]

HEAD = """
import os, signal, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from driven import begin, make_window, on_remote, record, unmeasured
from vllm_driven import Live, Trace
from vllm_tiny import arguments
from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm.driver import VllmDriver, engine_args

model, here = sys.argv[1], Path.cwd()

def refusal(work):
    try:
        on_remote(work)
    except EngineFailure as error:
        return error
    raise AssertionError("not refused")

def children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found

def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()

def close(live):
    for core in live.processes():
        for worker in children(core.pid):
            os.kill(worker, signal.SIGKILL)
        core.kill()
"""

BY_HAND = """
def main():
    # As a user writes it from vLLM's own documentation: a plain folder, front end and stacks as they come.
    plain = here / "plain"
    plain.mkdir()
    live = Live(model, profiler_config={"profiler": "torch", "torch_profiler_dir": str(plain)})
    assert live.engine.profiler is not None
    driver = VllmDriver.of_engine(live.engine)
    (plain / "rank0.1700000000000000000.pt.trace.json.gz").write_bytes(b"of another day")
    (plain / "stepprof-other000_rank0.1700000000000000000.pt.trace.json.gz").write_bytes(b"of another engine")
    for step, tokens in ((2, 3), (3, 4)):
        window = make_window(here, step)
        stopped = record(driver, window, lambda: live.generate(tokens))
        assert live.engine.profiler is None  # started and stopped on two threads it ends this process
        (artifact,) = stopped.artifacts
        trace = Trace.of(window, artifact)
        assert len(trace.forward) == tokens, trace.forward
        assert any(event.get("cat") == "python_function" for event in trace.events)
    assert {path.name for path in plain.iterdir() if path.name.endswith(".gz")} == {
        "rank0.1700000000000000000.pt.trace.json.gz", "stepprof-other000_rank0.1700000000000000000.pt.trace.json.gz"
    }

    window = make_window(here, 4)
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    live.generate(2)
    (core,) = live.processes()
    worker = next(pid for pid in children(core.pid) if b"spawn_main" in command(pid) or b"Worker" in command(pid))
    os.kill(worker, signal.SIGKILL)
    began = time.monotonic()
    error = refusal(driver.stop(window))
    assert error.health == "dead", error
    assert "one of its processes has ended" in str(error), error
    assert time.monotonic() - began < 60
    for verb in (driver.arm, driver.start):
        error = refusal(verb(make_window(here, 5)))
        assert error.health == "dead", error
    assert refusal(driver.abort()).health == "dead"
    print("training goes on")

if __name__ == "__main__":
    main()
"""

SYNCHRONOUS = """
from vllm import LLM, SamplingParams

def main():
    with unmeasured():
        llm = LLM(**arguments(model, **engine_args(here / "traces")))
    driver = VllmDriver.of_engine(llm)
    assert driver.loop is None and not driver.inside and driver.workers == 1
    def generate(tokens):
        llm.generate(["abc"], SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0), use_tqdm=False)
    for step, tokens, options in ((2, 5, {}), (3, 3, {}), (4, 9, {"max_iterations": 2})):
        window = make_window(here, step, **options)
        stopped = record(driver, window, lambda: generate(tokens))
        (artifact,) = stopped.artifacts
        assert len(Trace.of(window, artifact).forward) == options.get("max_iterations", tokens)
        assert stopped.capped_by == ("engine" if options else None)
    llm.start_profile()
    window = make_window(here, 5)
    on_remote(driver.arm(window))
    assert refusal(driver.start(window)).health == "busy"
    llm.stop_profile()

    window = make_window(here, 6, max_iterations=2)
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    generate(5)
    core = llm.llm_engine.engine_core.resources.engine_manager.processes[0]
    orphans = children(core.pid)
    core.kill()
    stopped = None
    try:
        stopped = on_remote(driver.stop(window))
    except EngineFailure as error:
        raise AssertionError("what its own bound had ended is kept") from error
    (artifact,) = stopped.artifacts
    assert len(Trace.of(window, artifact).forward) == 2
    assert "is dead" in stopped.partial, stopped
    error = refusal(driver.arm(make_window(here, 7)))
    assert error.health == "dead", error
    for pid in orphans:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    print("training goes on")

if __name__ == "__main__":
    main()
"""

DATA_PARALLEL = """
from stepprof.remote.vllm.files import _engine_of, _look
from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find

def main():
    live = Live(model, data_parallel_size=2, **engine_args(here / "traces"))
    driver = VllmDriver.of_engine(live.engine)
    assert driver.workers == 2
    cores = [process.pid for process in live.processes()]
    live.generate(2, prompts=4)
    pids = []
    for step in (2, 3):
        window = make_window(here, step)
        stopped = record(driver, window, lambda: live.generate(3, prompts=4))
        assert stopped.partial is None, stopped
        assert sorted(path.name for path in window.output.iterdir()) == [
            "dp-0-rank-0.trace.json.gz", "dp-1-rank-0.trace.json.gz"
        ]
        traces = [Trace.of(window, artifact) for artifact in stopped.artifacts]
        assert [trace.stated["dp_rank"] for trace in traces] == [0, 1]
        # every token of the four requests, in one engine or the other; none twice
        assert sum(prompt for trace in traces for prompt, _ in trace.forward) == 4 * 3
        assert sum(generated for trace in traces for _, generated in trace.forward) == 4 * 2
        (row,) = analyse(find([window.output], output_dir=here), workers=1).rollout
        assert row.label == "rollout/0", row
        assert row.iterations == sum(len(trace.forward) for trace in traces), row
        assert row.peak_batch <= 4, row
        for trace, core in zip(traces, cores):
            (pid,) = trace.pids
            assert pid in children(core), "the file of the other engine"
        pids.append([trace.pids for trace in traces])
    assert pids[0] == pids[1]
    window = make_window(here, 4, workers=frozenset({1}))
    stopped = record(driver, window, lambda: live.generate(2, prompts=4))
    assert [path.name for path in window.output.iterdir()] == ["dp-1-rank-0.trace.json.gz"]

    # A server's processes are not known: vLLM's titles tell which engine wrote a file (here of a capture that nobody asked us for).
    live.run(live.engine.start_profile())
    live.generate(2, prompts=4)
    live.run(live.engine.stop_profile())
    idle = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir).parent / "idle"
    found = [_look(path, None) for path in idle.glob("*.pt.trace.json.gz")]
    assert {_engine_of(each, {}): {each.pid} for each in found} == dict(enumerate(pids[0]))
    close(live)
    print("told apart")

if __name__ == "__main__":
    main()
"""

IN_PROCESS = """
import stepprof
from vllm import LLM, SamplingParams

def main():
    llm = LLM(**arguments(model, **engine_args(here / "traces")))
    driver = VllmDriver.of_engine(llm)
    assert driver.inside
    begin(here / "runs", steps="2", backend="torch", roles={})
    stepprof.attach(llm, role="rollout")
    for step in (1, 2, 3):
        with stepprof.profile_step(step, role="rollout"):
            llm.generate(["abc"], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert not llm.llm_engine._profile_session_active
    stepprof.shutdown()
    print("joined")

if __name__ == "__main__":
    main()
"""

ENDING = """
import stepprof, stepprof.recording.exit_handlers

def main():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage has a handler of its own
    stepprof.recording.exit_handlers.SIGTERM_SECONDS = 60.0  # an engine's first stop loads what it exports with, and others use both cores
    begin(here / "runs", steps="2")
    assert "vllm" not in sys.modules
    live = Live(model, **engine_args(here / "traces"))
    stepprof.attach(live.engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    live.generate(4)
    cores = [core.pid for core in live.processes()]
    print("processes", *cores, *(pid for core in cores for pid in children(core)), flush=True)
    if sys.argv[2] == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(120)
    sys.exit(3)

if __name__ == "__main__":
    main()
"""


def test_a_hand_built_engine_is_recorded_and_its_death_reported(run_vllm: Run) -> None:
    """In a plain folder the new traces are taken and other files stay. A worker that is killed
    while it records makes the engine `dead`, and training continues.
    """
    assert "training goes on" in run_vllm(HEAD + BY_HAND).check().stdout


def test_a_synchronous_engine_and_the_death_of_its_core(run_vllm: Run) -> None:
    """`LLM` is called from a thread. The trace that the engine's limit ended before the core was
    killed is kept as partial.
    """
    assert "training goes on" in run_vllm(HEAD + SYNCHRONOUS).check().stdout


def test_files_of_two_data_parallel_engines_are_distinguished(run_vllm: Run) -> None:
    """vLLM gives both files the same name. Each is assigned to its engine by the process that wrote
    it.
    """
    assert "told apart" in run_vllm(HEAD + DATA_PARALLEL).check().stdout


def test_an_engine_inside_this_process_is_joined_and_never_started(run_vllm: Run, tmp_path: Any) -> None:
    """Two profilers in one process would end it. The forward steps are in the capture of this
    process.
    """
    ran = run_vllm(HEAD + IN_PROCESS, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}).check()
    assert "joined" in ran.stdout
    (entry,) = read_entries(tmp_path / "runs")
    assert (entry["status"], entry["kind"], entry["artifacts"]) == ("joined", "vllm", [])
    with gzip.open(tmp_path / "runs" / "run" / "step-000002" / "rollout" / "rank-0.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    forward = [event for event in events if event.get("name") == "vllm::unified_attention_with_output"]
    assert len(forward) == 3 * 2  # three tokens, two layers


@pytest.mark.parametrize(
    ("how", "status"),
    [pytest.param("sys.exit", 3, marks=pytest.mark.variant), ("SIGTERM", -signal.SIGTERM)],
)
def test_a_job_that_ends_while_its_engine_records(
    run_vllm: Run, tmp_path: Path, how: str, status: int
) -> None:
    """The session starts before vLLM is imported. At the end of the job the engine is stopped while
    its processes exist, and its trace is kept as partial.
    """
    ran = run_vllm(HEAD + ENDING, how, fresh=True)
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("processes ")]
    for pid in map(int, line.split()[1:]):  # a killed job leaves vLLM's processes behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert ran.returncode == status, ran.stderr[-4000:]
    (entry,) = read_entries(tmp_path / "runs")
    assert (entry["status"], entry["health"]) == ("partial", "ok")
    assert entry["error"] == ("SIGTERM" if how == "SIGTERM" else "the run ended while it was recording")
    assert Trace.named(tmp_path / "runs", entry["artifacts"][0]).forward == [(3, 0), *[(0, 1)] * 3]
