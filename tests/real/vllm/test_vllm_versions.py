"""Test what changed between vLLM 0.8.5 and 0.33: run two older versions in the same environment,
and read the sources of others.

Versions up to 0.26 were built for another torch and do not load next to 0.32's, and 0.33 has no
build for CPUs. Of their real wheels the tests read the signatures of ``start_profile``, the fields
of ``ProfilerConfig`` and the environment variables. `nox -s vllm` installs the sources where these
tests expect them.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driven import make_window

from stepprof.config.options.engine import EngineOptions
from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm import arguments
from stepprof.remote.vllm.arguments import Settings
from stepprof.remote.vllm.capabilities import start_arguments
from stepprof.remote.vllm.driver import engine_args, environment, serve_args

VERSIONS = Path(sys.prefix) / "vllm-versions"

RUN = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import vllm
from driven import make_window, on_remote, record
from vllm_driven import Live, Trace
from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm.driver import VllmDriver, engine_args

def main():
    model, version, here = sys.argv[1], sys.argv[2], Path.cwd()
    assert vllm.__version__.startswith(version), vllm.__version__
    live = Live(model, **engine_args(here / "traces", {"max_iterations": 4}))
    driver = VllmDriver.of_engine(live.engine)
    for step, tokens, options in ((2, 3, {}), (3, 8, {"max_iterations": 4}), (4, 2, {"max_iterations": 4})):
        live.generate(2)
        window = make_window(here, step, **options)
        stopped = record(driver, window, lambda: live.generate(tokens))
        (artifact,) = stopped.artifacts
        trace = Trace.of(window, artifact)
        assert trace.forward == [(3, 0), *[(0, 1)] * (min(tokens, 4) - 1)], trace.forward
        assert trace.stated["rank"] == 0 and artifact.path.endswith("replica-0/rank-0.trace.json.gz")
        assert stopped.capped_by == ("engine" if tokens > 4 else None), stopped
    try:
        on_remote(driver.arm(make_window(here, 5, max_iterations=2)))
    except EngineFailure as error:
        print(error.health, error)
    for core in live.processes():
        core.kill()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("version", [pytest.param("0.31.0", marks=pytest.mark.variant), "0.27.1"])
def test_an_older_engine_is_recorded_step_by_step(run_vllm: Callable[..., Any], version: str) -> None:
    """Two steps are written to two folders without a restart. The limit of the engine's
    construction applies, and another limit is refused with a message.
    """
    out = run_vllm(RUN, version, env={"PYTHONPATH": str(VERSIONS / version)}, fresh=True).check().stdout
    assert "unconfigured max_iterations = 2: this vLLM takes it only when the engine is built" in out
    assert "this one was built with 4" in out


def source(version: str, path: str) -> ast.Module:
    """Return the syntax tree of a file in a version's real wheel."""
    return ast.parse((VERSIONS / version / "vllm" / path).read_text())


def signature(version: str) -> inspect.Signature:
    """Return the signature of ``AsyncLLM.start_profile`` in a version that does not load here."""
    for node in ast.walk(source(version, "v1/engine/async_llm.py")):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "start_profile":
            node.body, node.returns = [ast.Pass()], None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
            space: dict[str, Any] = {}
            exec(compile(ast.fix_missing_locations(ast.Module([node], [])), version, "exec"), space)
            bound = inspect.signature(space["start_profile"])
            return bound.replace(parameters=list(bound.parameters.values())[1:])
    raise AssertionError("no start_profile")


def config_fields(version: str) -> set[str]:
    """Return the fields of ``ProfilerConfig`` in a version that does not load here."""
    for node in ast.walk(source(version, "config/profiler.py")):
        if isinstance(node, ast.ClassDef) and node.name == "ProfilerConfig":
            return {
                n.target.id
                for n in node.body
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
            }
    raise AssertionError("no ProfilerConfig")


def variables_module(version: str) -> Any:
    """Return the real ``vllm.envs`` of a version. It needs no other module of that version."""
    path = VERSIONS / version / "vllm" / "envs.py"
    spec = importlib.util.spec_from_file_location(f"envs_{version.replace('.', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestSources:
    @pytest.mark.parametrize("version", ["0.8.5", "0.12.0", "0.13.0", "0.16.0"])
    def test_a_start_without_parameters_is_given_none(self, version: str, tmp_path: Path) -> None:
        """The start gets neither a prefix nor limits. The limits of the configuration apply, and
        other ones are refused.
        """
        known = signature(version).parameters
        window = make_window(tmp_path)
        assert start_arguments(window, Settings("/traces"), known, "prefix") == {}
        bounded = make_window(tmp_path, max_iterations=8, delay_iterations=2)
        built = Settings("/traces", max_iterations=8, delay_iterations=3)
        assert start_arguments(bounded, built, known, "prefix") == {}
        with pytest.raises(EngineFailure, match="delay_iterations = 2: this vLLM takes it only when"):
            start_arguments(bounded, Settings("/traces", max_iterations=8), known, "prefix")

    @pytest.mark.parametrize("version", ["installed", "0.33.0"])
    def test_the_newest_take_bounds_with_each_start(self, version: str, tmp_path: Path) -> None:
        """Only options that differ from the built-in ones are passed, because a custom worker class
        may not know them.
        """
        from vllm.v1.engine.async_llm import AsyncLLM

        known = (
            inspect.signature(AsyncLLM.start_profile) if version == "installed" else signature(version)
        ).parameters
        by_default = Settings("/traces", max_iterations=32)
        assert start_arguments(make_window(tmp_path), by_default, known, "p") == {"profile_prefix": "p"}
        window = make_window(tmp_path, max_iterations=8, delay_iterations=2)
        assert start_arguments(window, Settings("/traces", max_iterations=8), known, "p") == {
            "profile_prefix": "p",
            "delay_iterations": 3,
        }
        unbounded = make_window(tmp_path, max_iterations="none")
        assert start_arguments(unbounded, by_default, known, "p")["max_iterations"] == 0

    @pytest.mark.parametrize("version", ["0.12.0", "0.8.5"])
    def test_old_versions_read_the_environment(
        self, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The variables that `environment` sets are those that the module of the version reads."""
        envs = variables_module(version)
        monkeypatch.delenv("VLLM_TORCH_PROFILER_DIR", raising=False)
        assert Settings.of_environment(envs).profiler is None
        for name, value in environment(tmp_path, EngineOptions(max_iterations=5, delay_iterations=1)).items():
            monkeypatch.setenv(name, value)
        settings = Settings.of_environment(envs)
        assert settings.profiler == "torch"
        assert settings.folder == str(tmp_path / "engine-1" / "current")
        if version == "0.12.0":
            assert (settings.with_stack, settings.record_shapes) == (False, False)
            assert (settings.max_iterations, settings.delay_iterations) == (5, 2)
            assert envs.VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM
        else:
            assert settings.with_stack  # that version always records stacks; a warning says so

    def test_engine_args_of_an_old_version_set_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old version gets no arguments. Only variables that the version knows are set."""
        envs = variables_module("0.8.5")
        monkeypatch.setattr(arguments, "_config_fields", lambda: None)
        monkeypatch.setattr(arguments, "_known_variables", lambda: frozenset(envs.environment_variables))
        monkeypatch.setattr(os, "environ", dict(os.environ))
        assert engine_args(tmp_path) == {}
        assert os.environ["VLLM_TORCH_PROFILER_DIR"] == str(tmp_path / "engine-1" / "current")
        assert "VLLM_PROFILER_MAX_ITERS" not in os.environ
        assert serve_args(tmp_path) == []

    @pytest.mark.parametrize("version", ["0.13.0", "0.16.0", "0.27.1", "0.31.0", "0.33.0"])
    def test_engine_args_name_only_fields_that_the_version_has(
        self, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every key is a field of the version, because vLLM refuses unknown keys."""
        fields = config_fields(version)
        monkeypatch.setattr(arguments, "_config_fields", lambda: frozenset(fields))
        given = engine_args(tmp_path, EngineOptions(activities=["cpu"], max_iterations=3))["profiler_config"]
        assert set(given) <= fields
        assert given["ignore_frontend"] is True
        assert given["torch_profiler_with_stack"] is False
        assert given["max_iterations"] == 3


class TestEngineArgs:
    def test_the_installed_class_takes_them(self, tmp_path: Path) -> None:
        """The real `ProfilerConfig` accepts all options, and reads them as they were given."""
        from vllm.config import ProfilerConfig

        options = {"with_stack": True, "record_shapes": True, "activities": ["cpu"], "delay_iterations": 2}
        config = ProfilerConfig(**engine_args(tmp_path, options)["profiler_config"])
        assert config.torch_profiler_dir == str(tmp_path / "engine-1" / "current")
        settings = Settings.of_config(config)
        assert settings == Settings(
            folder=config.torch_profiler_dir,
            with_stack=True,
            record_shapes=True,
            activities=("cpu",),
            delay_iterations=3,
            max_iterations=32,
        )
        assert not config.should_profile_frontend

    def test_each_call_makes_a_folder_of_its_own(self, tmp_path: Path) -> None:
        """Each call creates its own folder, because engines with one folder would mix up their
        traces.
        """
        folders = [engine_args(tmp_path)["profiler_config"]["torch_profiler_dir"] for _ in range(3)]
        assert folders == [str(tmp_path / f"engine-{n}" / "current") for n in (1, 2, 3)]
        assert all(Path(folder).is_dir() and Path(folder).is_symlink() for folder in folders)

    def test_serve_args_are_one_argument(self, tmp_path: Path) -> None:
        """The configuration is one argument in JSON, as the server's parser expects it."""
        import json

        flag, value = serve_args(tmp_path)
        assert flag == "--profiler-config"
        assert json.loads(value)["torch_profiler_dir"] == str(tmp_path / "engine-1" / "current")
