"""Test the adapter of torchtitan with its wheel: names and parameters by reading it, windows by
running its training loop.
"""

from __future__ import annotations

import pytest
from running import run_job, spans
from skeleton import build
from wheels import assigns, packages

from stepprof.integrations import torchtitan
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps

pytestmark = pytest.mark.timeout(500)

LOGGER = "torchtitan/observability/structured_logger"
KEPT = [
    *("torchtitan/trainer.py", "torchtitan/tools/profiler.py"),
    *(f"{LOGGER}/{name}.py" for name in ("__init__", "structured_logging", "step_state")),
]
NAMES = """
class Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {"__init__": lambda self, *args, **kwargs: None})
def __getattr__(name):
    return getattr(Names("Module", (), {}), name)
"""
CONFIGURABLE = """
class Configurable:
    class Config: ...
TORCH_DTYPE_MAP = {}
"""
LOADER = """
class DataloaderExhaustedError(Exception): ...
"""
LOGGING = """
from logging import getLogger
logger = getLogger("torchtitan")
"""
STUBS = {
    **dict.fromkeys(["tyro/__init__.py", "spmd_types/__init__.py"], NAMES),
    "torchtitan/config/__init__.py": CONFIGURABLE + NAMES,
    "torchtitan/components/dataloader.py": LOADER + NAMES,
    "torchtitan/components/loss.py": "IGNORE_INDEX = -100\n" + NAMES,
    "torchtitan/tools/logging.py": LOGGING,
    **dict.fromkeys(
        [
            *(
                "torchtitan/components/checkpointer/__init__.py",
                "torchtitan/components/quantization/utils.py",
            ),
            *(f"torchtitan/components/{name}.py" for name in ("metrics", "optimizer")),
            *(f"torchtitan/components/{name}.py" for name in ("lr_scheduler", "tokenizer", "validate")),
            *(f"torchtitan/config/{name}.py" for name in ("configs", "override", "function")),
            *(f"torchtitan/distributed/{name}.py" for name in ("__init__", "utils", "activation_checkpoint")),
            *(
                f"torchtitan/distributed/{name}.py"
                for name in ("context_parallel", "cudagraph", "spmd_types")
            ),
            *(f"torchtitan/models/common/{name}.py" for name in ("attention", "decoder", "token_dispatcher")),
            *(f"torchtitan/protocols/{name}.py" for name in ("__init__", "model_spec")),
            "torchtitan/tools/utils.py",
        ],
        NAMES,
    ),
}


@pytest.fixture(scope="module")
def wheel():
    """Return the folder of torchtitan's package."""
    return packages("torchtitan")


class TestNames:
    def test_names_and_parameters(self, wheel, monkeypatch) -> None:
        """The wheel has every name and parameter that the adapter needs."""
        monkeypatch.syspath_prepend(str(wheel))
        (adapter,) = torchtitan.ADAPTERS
        assert missing_in_source(adapter) == []

    def test_attributes(self, wheel) -> None:
        """The step and the name of a span are attributes, which no signature shows. The wheel
        assigns them.
        """
        assert {"step", "config"} <= assigns(wheel / "torchtitan/trainer.py", "Trainer")
        assert "base_name" in assigns(wheel / f"{LOGGER}/structured_logging.py", "log_trace_span")

    @pytest.mark.parametrize(
        ("file", "span"), [("trainer", torchtitan.STEP), ("components/validate", torchtitan.EVAL)]
    )
    def test_spans(self, wheel, file, span) -> None:
        """torchtitan opens spans with the names of the step and the evaluation."""
        assert f'log_trace_span("{span}")' in (wheel / f"torchtitan/{file}.py").read_text()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return a function that runs a job of three steps and returns its run, its folder and its log."""
    folder = build("torchtitan", tmp_path_factory.mktemp("torchtitan"), KEPT, STUBS)

    def run(output, *options, **environment):
        found, done = run_job(folder, "torchtitan_job.py", options=options, output=output, **environment)
        return found, folder, done.stderr

    return run


@pytest.fixture(scope="module")
def recorded(job):
    """Return the run of a job whose second step is recorded."""
    return job("runs", "--steps", "2")[0]


class TestJob:
    def test_windows(self, recorded) -> None:
        """Each step has one window with torchtitan's number. The evaluation has its role."""
        assert spans(recorded, 1, "window") == spans(recorded, 3, "window") == {None: 1}
        assert spans(recorded, 2, "window") == {None: 1, "eval": 1}

    def test_spans_are_regions(self, recorded) -> None:
        """Spans of context managers and decorators become regions, although no structured logger
        was started.
        """
        assert spans(recorded, 1, "region") == {"fetching_batch": 2, "fwd_bwd": 2, "optim": 1}

    def test_the_recorded_step(self, recorded) -> None:
        """The recorded step is step 2 of torchtitan's count. Its window is complete and belongs to
        rank 0.
        """
        assert steps(recorded) == [2]
        (window,) = [each for each in read_step(recorded, 2)["windows"] if each["role"] is None]
        assert (window["status"], window["rank"]) == ("complete", 0)
        assert read_run(recorded)["adapters"]["torchtitan"] == {"status": "attached", "version": "0.3.0"}


class TestOwnProfiler:
    def test_steps_of_torchtitans_profiler_are_recorded(self, job) -> None:
        """With `STEPPROF_FROM=framework`, stepprof records the steps of torchtitan's profiler, and
        that profiler is off.
        """
        run, folder, _ = job("own", OWN="1", STEPPROF_FROM="framework")
        assert steps(run) == [2]
        assert not (folder / "outputs").exists()

    def test_steps_of_both_profilers_are_reported(self, job) -> None:
        """If both profilers are to record a step, the log names the option of torchtitan's
        profiler. That profiler writes its trace.
        """
        _, folder, log = job("both", "--steps", "2-3", "--backend", "null", OWN="1")
        assert "profiler.enable_profiling" in log
        assert list(folder.glob("outputs/profiling/traces/iteration_2/*.json.gz"))
