"""The command that starts nsys, with the options for the number of windows and for the installed version."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from nsys.tools import build

from stepprof.backends.nsys.backend import count_windows, nsys_command, ray_runtime_env
from stepprof.backends.nsys.launch import profile_help
from stepprof.backends.nsys.process import VARIABLE, launch_of
from stepprof.config.config import Config, NsysOptions
from stepprof.errors import ConfigError

NSYS = {"steps": "2, 10-12", "backend": "nsys"}


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Work in the folder of the test, so that all files are written there."""
    monkeypatch.chdir(tmp_path)
    profile_help.cache_clear()
    yield
    profile_help.cache_clear()


def options(command):
    return dict(argument[2:].split("=", 1) for argument in command[2:] if argument.startswith("--"))


class TestCount:
    @pytest.mark.parametrize(
        ("config", "roles", "windows"),
        [
            ({}, (), 4),
            ({}, ("rollout", "actor"), 8),
            ({"steps": "none"}, (), 0),
            ({"steps": "2, every 100"}, (), None),
            ({"steps": "all"}, (), None),
            ({"join_steps": True}, (), 2),
            ({"join_steps": True}, ("rollout", "actor"), 2),
            ({"capture_per": "role"}, (), None),
            ({"capture_per": "role"}, ("rollout", "actor", "ref"), 12),
            ({"capture_per": "region", "regions": ["a"]}, (), None),
            ({"schedule": {"region": "a", "active": 2, "repeat": 3}}, (), 12),
            ({"roles": {"ref": {"enabled": False}, "actor": {"steps": "2"}}}, ("ref", "actor", "rollout"), 5),
            ({"roles": {"actor": {"backend": "torch"}}}, ("rollout", "actor"), 4),
            ({"watch": {"enabled": True}}, (), None),
            ({"watch": {"enabled": True, "max_captures": 0}}, (), 4),
        ],
    )
    def test_the_number_of_windows_is_computed(self, config, roles, windows):
        """The number is computed from steps, roles and the scope of a capture. It is None if it is known
        only during the run.
        """
        assert count_windows(Config(**{**NSYS, **config}), roles) == windows

    def test_windows_of_a_rank_are_counted(self):
        """A rank that only a role selects has the windows of that role."""
        config = Config(**NSYS, ranks="0-3", roles={"rollout": {"ranks": "all"}})
        assert [count_windows(config, ("rollout", "actor"), rank) for rank in (3, 4)] == [8, 4]

    @pytest.mark.parametrize(
        ("config", "roles", "windows"),
        [
            ({}, ("rollout",), 4),
            ({"join_steps": True}, ("rollout", "eval"), 8),
            ({"schedule": {"region": "a", "active": 2, "repeat": 3}}, ("rollout",), 4),
            ({"capture_per": "region", "regions": ["a"]}, ("rollout",), 4),
            ({"steps": "every 100"}, ("rollout",), None),
            ({"backend": "torch"}, ("rollout",), 0),
            ({"backend": "torch", "roles": {"rollout": {"engine": {"backend": "nsys"}}}}, ("rollout",), 4),
            ({"roles": {"rollout": {"engine": {"backend": "torch"}}}}, ("rollout",), 0),
            ({"watch": {"enabled": True}}, ("rollout",), None),
        ],
    )
    def test_windows_of_an_engine_are_counted(self, config, roles, windows):
        """An engine has one range for each window of its roles, whatever a rank captures, if the engine's
        backend is nsys.
        """
        assert count_windows(Config(**{**NSYS, **config}), roles, engine=True) == windows


class TestCommand:
    def test_a_recent_nsys_gets_its_options(self, tools, tmp_path):
        """A recent nsys writes each report at the end of its range, without the environment."""
        command = nsys_command(NSYS, command=["python", "train.py"], nsys=tools.nsys)
        assert command[:2] == [tools.nsys, "profile"]
        assert command[-2:] == ["python", "train.py"]
        given = options(command)
        folder = tmp_path / "stepprof-runs" / "nsys"
        assert folder.is_dir()
        assert (
            given.pop("env-var")
            == f"{VARIABLE}=output={folder}/{{host}}_{{pid}};ranges=4;mode=async;environment=left-out"
        )
        assert given == {
            "trace": "cuda,nvtx",
            "output": f"{folder}/%h_%p",
            "force-overwrite": "true",
            "capture-range": "cudaProfilerApi",
            "capture-range-end": "repeat:4:async",
            "kill": "none",
            "cuda-graph-trace": "graph",
            "sample": "none",
            "cpuctxsw": "none",
            "discard-environment": "true",
        }

    def test_an_older_nsys(self, tools, monkeypatch):
        """The command for an older nsys has no option that this nsys does not know."""
        monkeypatch.setenv("NSYS_STAND_IN_IS_OLD", "1")
        given = options(nsys_command(NSYS, nsys=tools.nsys))
        assert given["capture-range-end"] == "repeat:4"
        assert "discard-environment" not in given
        assert "mode=defer" in given["env-var"]
        assert (
            options(nsys_command({**NSYS, "steps": "every 5"}, nsys=tools.nsys))["capture-range-end"]
            == "repeat"
        )

    @pytest.mark.parametrize(
        "broken",
        ["#!/bin/sh\nexec sleep 100\n", "not a program at all", None],
        ids=["hangs", "no program", "none"],
    )
    def test_no_nsys_here(self, tmp_path, broken, monkeypatch):
        """If the local nsys cannot be asked for its options, the command has only options that every
        version knows.
        """
        path = tmp_path / "nsys"
        if broken:
            path.write_text(broken)
            path.chmod(0o755)
        monkeypatch.setattr("stepprof.backends.nsys.launch.HELP_SECONDS", 0.3)
        assert options(nsys_command(NSYS, nsys=str(path)))["capture-range-end"] == "repeat:4"

    def test_an_unknown_number_of_windows_repeats_without_limit(self, tools):
        """If the number of windows is unknown or `any`, nsys repeats its ranges without a limit."""
        for config, windows in (
            ({**NSYS, "steps": "every 5"}, None),
            (NSYS, "any"),
            ({**NSYS, "nsys": {"windows": "any"}}, None),
        ):
            given = options(nsys_command(config, windows=windows, nsys=tools.nsys))
            assert given["capture-range-end"] == "repeat:async"
            assert "ranges=any" in given["env-var"]

    def test_options_of_the_table(self, tools, tmp_path):
        """Each option of the table `nsys` becomes an option of the command, and `extra` is added."""
        table = {
            "trace": ["cuda", "nvtx", "nccl"],
            "sample": True,
            "domains": ["stepprof", "NCCL"],
            "windows": 7,
            "keep_environment": True,
            "report_dir": str(tmp_path / "reports"),
            "extra": {"cuda-graph-trace": "node", "cuda-memory-usage": True, "stats": True},
        }
        given = options(nsys_command({**NSYS, "nsys": table}, rank=0, nsys=tools.nsys))
        assert given["trace"] == "cuda,nvtx,nccl"
        assert (given["cuda-graph-trace"], given["cuda-memory-usage"]) == ("node", "true")
        assert given["nvtx-domain-include"] == "stepprof,NCCL"
        assert given["capture-range-end"] == "repeat:7:async"
        assert given["output"] == f"{tmp_path}/reports/rank-0_%h_%p"
        assert given["stats"] == "true"
        assert not {"sample", "cpuctxsw", "discard-environment"} & given.keys()

    def test_an_engine_s_server(self, tools):
        """For an engine the backend in its role's configuration is used. The roles have to be named."""
        config = {
            **NSYS,
            "backend": "torch",
            "roles": {"rollout": {"engine": {"backend": "nsys"}}},
        }
        given = options(nsys_command(config, roles=["rollout"], engine=True, nsys=tools.nsys))
        assert given["capture-range-end"] == "repeat:4:async"
        with pytest.raises(ConfigError, match="an engine follows the windows of roles"):
            nsys_command(config, engine=True)
        with pytest.raises(ConfigError, match="this process records nothing with nsys"):
            nsys_command(config, roles=["actor"], engine=True)

    def test_a_name_without_the_process(self, tools, tmp_path):
        """If the output name has no process id, the name and number alone identify a report."""
        given = options(nsys_command(NSYS, output=tmp_path / "engine", nsys=tools.nsys))
        name, _, value = given["env-var"].partition("=")
        launch = launch_of(NsysOptions(), {name: value})
        (tmp_path / "engine.2.nsys-rep").touch()
        (tmp_path / "engine2.1.nsys-rep").touch()
        assert launch.find(2) == tmp_path / "engine.2.nsys-rep"
        assert launch.find(1) is None

    def test_a_rank_that_records_nothing(self):
        """For a rank that records nothing, the command is returned unchanged."""
        assert nsys_command(NSYS, rank=1, command=["python", "train.py"]) == ["python", "train.py"]

    def test_the_process_finds_the_settings_of_the_command(self, tools, tmp_path, monkeypatch):
        """The process reads the settings from the command's variable, and finds its report at the
        command's path.
        """
        given = options(nsys_command(NSYS, nsys=tools.nsys))
        name, _, value = given["env-var"].partition("=")
        launch = launch_of(NsysOptions(), {name: value})
        assert (launch.ranges, launch.deferred, launch.leaves_environment_out) == (4, False, True)
        path = Path(
            given["output"].replace("%h", socket.gethostname()).replace("%p", str(__import__("os").getpid()))
            + ".3.nsys-rep"
        )
        path.write_text("x")
        assert launch.find(3) == path
        assert launch.find(1) is None

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda: nsys_command({**NSYS, "backend": "torch"}),
                'backend = "torch": this process records nothing with nsys; did you mean "nsys"?',
            ),
            (
                lambda: nsys_command(NSYS, windows=2.5),
                'windows = 2.5: expected a number of windows, or "any"; did you mean 1?',
            ),
            (
                lambda: nsys_command(NSYS, windows=0),
                'windows = 0: expected a number of windows, or "any"; did you mean 1?',
            ),
            (
                lambda: nsys_command(NSYS, output="/tmp/a b"),
                'output = "/tmp/a b": nsys or a shell would misread it',
            ),
            (lambda: ray_runtime_env(NSYS, name="$(x)"), 'name = "$(x)": nsys or a shell would misread it'),
        ],
    )
    def test_refused(self, call, message):
        """The error names the key, the value and the reason."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            call()

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        """The error says that the folder cannot be made."""
        (tmp_path / "stepprof-runs").write_text("")
        with pytest.raises(ConfigError, match=r"output_dir = .*: cannot be made"):
            nsys_command(NSYS)


class TestRay:
    def test_the_environment_of_an_actor(self, tools):
        """The options have the form of Ray's plug-in, and the output name contains the rank and the
        process id.
        """
        env = ray_runtime_env(NSYS, roles=["actor"], rank=0, nsys=tools.nsys)
        assert env["_nsight"]["o"] == "stepprof_rank-0_%p"
        assert env["_nsight"]["capture-range-end"] == "repeat:4:async"
        assert env["env_vars"] == {
            VARIABLE: "output=stepprof_rank-0_{pid};ranges=4;mode=async;environment=left-out"
        }
        assert "output" not in env["_nsight"]
        assert ray_runtime_env(NSYS, rank=3) == {}


class TestOptions:
    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ({"trace": "cuda,nvtx"}, "did you mean ['cuda', 'nvtx']?"),
            ({"trace": []}, "nsys.trace = []: expected at least one name"),
            ({"windows": 0}, "nsys.windows = 0: too small; did you mean 1?"),
            ({"windows": "all"}, 'did you mean "any"?'),
            ({"report_timeout_seconds": 0}, "nsys.report_timeout_seconds = 0"),
            ({"extra": "x"}, "expected a table"),
            ({"extra": {"--stats": "true"}}, 'did you mean "stats"?'),
            ({"extra": {"trace": "cuda"}}, "did you mean nsys.trace?"),
            ({"extra": {"kill": "none"}}, "stepprof sets it; leave it out"),
            ({"extra": {"stats": "a b"}}, "a shell would interpret"),
            ({"tracing": ["cuda"]}, 'unknown key; did you mean "trace"?'),
        ],
    )
    def test_refused(self, table, message):
        """The error for an invalid option names the option or suggests a correction."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            Config(nsys=table)

    def test_round_trip(self):
        """Options that are written into a run are read back unchanged."""
        config = Config(nsys={"extra": {"stats": True}, "domains": "stepprof", "windows": 3})
        assert Config.from_mapping(config.to_dict()) == config
        assert config.policy(None).nsys.extra == {"stats": "true"}
