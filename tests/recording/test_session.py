"""The session of a process: its begin, its end, the windows that it selects,
and the calls that it refuses.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from faulty import control, ended, windows

import stepprof
from stepprof import profile_step, region
from stepprof.errors import ConfigError, StateError
from stepprof.instrument.context import cell
from stepprof.instrument.scope import LARGEST_STEP
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps
from stepprof.run.spans import EVIDENCE, read_spans
from stepprof.run.status import read_statuses


def loop(steps, role=None) -> None:
    """Run a training loop."""
    for step in steps:
        with profile_step(step, role=role):
            pass


class Number:
    """An integer of another library, such as numpy's or a tensor of one element."""

    def __init__(self, number) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Step(enum.IntEnum):
    TWO = 2


@pytest.fixture
def init(tmp_path, monkeypatch):
    """Return `stepprof.init` with the null backend in the folder of the test.
    The session ends with the test.
    """
    monkeypatch.chdir(tmp_path)

    def init(config=None, **arguments):
        if isinstance(config, dict):
            config = {"backend": "null", "min_free_memory": "none", **config}
        return stepprof.init(config, **arguments)

    yield init
    stepprof.shutdown()


class TestInit:
    def test_a_second_one_is_the_same(self, init) -> None:
        """A second `init` with the same configuration, in any form, returns the same session."""
        first = init({"steps": "2"})
        assert init({"steps": [2]}) is first
        assert "run=" in repr(first)
        assert first.rank == 0
        assert json.loads((first.path / "run.json").read_text())["config"]["steps"] == "2"

    def test_another_configuration_begins_another_run(self, init, log) -> None:
        """An `init` with another configuration ends the first session as a shutdown does, logs that, and
        begins the next one: a sweep in one process.
        """
        paths = []
        for step in (1, 2, 3):
            paths.append(init({"steps": str(step)}).path)
            loop([1, 2, 3])
        stepprof.shutdown()
        assert [[each.name for each in path.glob("step-*")] for path in paths] == [
            ["step-000001"],
            ["step-000002"],
            ["step-000003"],
        ]
        assert [line["keys"] for line in log if line["event"] == "init.again"] == ["steps", "steps"]

    def test_another_configuration_inside_a_recorded_window(self, init) -> None:
        """The window of the first session that is open is partial, and its exit does not touch the next session."""
        first = init({"steps": "2"})
        with profile_step(2):
            second = init({"steps": "3"})
        loop([3])
        stepprof.shutdown()
        assert [(w["status"], w["error"]) for w in ended(first)] == [
            ("partial", "init was called again with another configuration")
        ]
        assert [w["status"] for w in ended(second)] == ["complete"]

    def test_another_run_id_begins_another_run(self, init) -> None:
        """The same configuration with another name of the run ends the first session too. Without a name it goes on."""
        first = init({"steps": "2"}, run_id="a")
        assert init({"steps": "2"}) is first
        assert init({"steps": "2"}, run_id="a") is first
        assert init({"steps": "2"}, run_id="b").run_id == "b"

    def test_a_trial_without_stepprof(self, init) -> None:
        """An `init` that is switched off ends the first session, and starts none."""
        init({"steps": "2"})
        assert init({"enabled": False}).path is None
        assert cell.session is None

    def test_a_wrong_configuration_leaves_the_first_session(self, init) -> None:
        """If the second configuration is refused, the first session goes on."""
        first = init({"steps": "2"})
        with pytest.raises(ConfigError):
            init({"stpes": "2"})
        assert cell.session is first

    def test_the_next_session_is_a_new_run(self, init) -> None:
        """After a shutdown, the next session has a run of its own."""
        first = init({"steps": "2"})
        stepprof.shutdown()
        second = init({"steps": "3"})
        assert first.path != second.path

    @pytest.mark.parametrize("variables", [{}, {"STEPPROF_STEPS": "", "STEPPROF_CONFIG": "", "STEPPROF": ""}])
    def test_nothing_configured_selects_no_step(self, init, monkeypatch, variables) -> None:
        """Without a configuration, or with empty variables, `init` keeps spans, and `trigger` can request a step."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        session = init()
        assert cell.session is session
        assert session.path is not None
        with stepprof.profile_step(1):
            pass
        stepprof.trigger(step=3, backend="null")
        deadline = time.monotonic() + 20
        while not any(status["requests"] for status in read_statuses(session.path)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        loop([2, 3, 4])
        stepprof.shutdown()
        assert [path.name for path in session.path.glob("step-*")] == ["step-000003"]

    def test_nothing_configured_in_a_worker_of_ray_waits(self, init, monkeypatch, log, tmp_path) -> None:
        """The driver attaches an actor, with its own configuration. Until then `init` without one starts nothing."""
        monkeypatch.setattr(sys, "argv", ["/ray/workers/default_worker.py"])
        session = init()
        assert (session.path, session.run_id, cell.session, session.rank) == (None, None, None, 0)
        assert [line["event"] for line in log] == ["init.waiting"]
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setenv("STEPPROF_STEPS", "2")
        assert init().path is not None

    def test_variables_that_a_configuration_contradicts(self, init, monkeypatch, log) -> None:
        """They do not count, which is logged once. A variable with the same value is not named."""
        for name, value in {"STEPS": "5", "RANKS": "0", "BACKEND": "", "OUTPUT_DIR": "x"}.items():
            monkeypatch.setenv(f"STEPPROF_{name}", value)
        session = init({"steps": "2", "ranks": [0]})
        (line,) = [line for line in log if line["event"] == "config.variables_ignored"]
        assert line["variables"] == "STEPPROF_STEPS, STEPPROF_OUTPUT_DIR"
        assert read_run(session.path)["ignored_variables"] == {
            "STEPPROF_STEPS": "5",
            "STEPPROF_OUTPUT_DIR": "x",
        }

    @pytest.mark.parametrize(
        "config",
        [{"enabled": False, "steps": "2"}, {"spans": False}, {"steps": "2", "ranks": "none", "spans": False}],
    )
    def test_a_configuration_that_records_nothing_is_off(self, init, tmp_path, config) -> None:
        """A configuration that records nothing makes no run and writes no file."""
        assert init(config).path is None
        assert list(tmp_path.iterdir()) == []

    def test_the_variable_switches_off_any_configuration(self, init, monkeypatch, tmp_path) -> None:
        """`STEPPROF=0` switches recording off, whatever the configuration says."""
        monkeypatch.setenv("STEPPROF", "0")
        assert init({"steps": "all"}).path is None
        loop([1, 2])
        assert list(tmp_path.iterdir()) == []

    def test_the_environment_sets_steps_backend_and_folder(self, init, monkeypatch) -> None:
        """Variables set the steps, the backend, the folder and the run id."""
        for name, value in {"STEPS": "2", "BACKEND": "null", "OUTPUT_DIR": "here", "RUN_ID": "mine"}.items():
            monkeypatch.setenv(f"STEPPROF_{name}", value)
        session = init()
        assert (session.path.parent.name, session.run_id) == ("here", "mine")

    def test_a_heavy_configuration_is_warned_about(self, init, log) -> None:
        """A configuration that is expensive is logged at `init`, with an estimate."""
        init(
            {
                "steps": "1-100",
                "ranks": "all",
                "torch": {"with_stack": True, "record_shapes": True},
                "backend": "torch",
            }
        )
        assert [line["reason"] for line in log if line["event"] == "config.expensive"]

    def test_ranks_beyond_the_world_are_refused(self, init) -> None:
        """If the world is known, a rank beyond it is refused, and there is no session."""
        with pytest.raises(ConfigError, match="there is no rank 8 in a world of 4; did you mean 3"):
            init({"steps": "2", "ranks": "8"}, rank=0, world_size=4)
        assert cell.session is None

    def test_ranks_beyond_an_unknown_world_are_reported_at_the_end(self, init, log) -> None:
        """Without a launcher, the world may become known later. So ranks beyond it are logged at the end."""
        init({"steps": "2", "ranks": "8", "roles": {"actor": {"ranks": "0"}, "ref": {"ranks": "3"}}})
        with profile_step(2):
            pass
        stepprof.shutdown()
        reported = [line["reason"] for line in log if line["event"] == "rank.nonexistent"]
        assert len(reported) == 2
        assert "there is no rank 8 in a world of 1" in reported[0]
        assert reported[1].startswith("roles.ref: ")

    def test_a_folder_that_cannot_be_written(self, init, tmp_path) -> None:
        """If the folder cannot be written, the error names it, and there is no session."""
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r'output_dir = ".*file/below": cannot be made or written'):
            init({"steps": "2", "output_dir": str(tmp_path / "file" / "below")})
        assert cell.session is None

    def test_shutdown_twice(self, init) -> None:
        """A second shutdown, or one without a session, does nothing."""
        session = init({"steps": "2"})
        stepprof.shutdown()
        stepprof.shutdown()
        session.shutdown()


class TestRank:
    @pytest.mark.parametrize(
        ("arguments", "environ", "rank"),
        [
            ({"rank": 1, "world_size": 2}, {"RANK": "0"}, 1),
            ({}, {"RANK": "1", "WORLD_SIZE": "2"}, 1),
            (
                {},
                {
                    "SLURM_JOB_ID": "7",
                    "SLURM_STEP_ID": "0",
                    "SLURM_PROCID": "1",
                    "SLURM_STEP_NUM_TASKS": "2",
                },
                1,
            ),
            ({}, {}, 0),
        ],
    )
    def test_where_it_is_from(self, init, monkeypatch, arguments, environ, rank) -> None:
        """The rank comes from the arguments or else from the launcher's variables, and is
        in the name of the manifest.
        """
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        session = init({"steps": "2", "ranks": "all"}, run_id="r", **arguments)
        loop([2])
        assert [w["rank"] for w in ended(session)] == [rank]
        assert (session.path / "step-000002" / "manifest" / f"step-rank-{rank}.json").exists()

    def test_a_process_without_one_has_a_name(self, init) -> None:
        """A process without a rank is called by its name. An invalid name is refused with a suggestion."""
        for name, near in (("a/b", "a-b-"), ("0", "worker-0"), ("", "worker")):
            with pytest.raises(ConfigError, match=f"^name = .*did you mean {near}"):
                init({"steps": "2"}, name=name)
        session = init({"steps": "2"}, run_id="r", name="driver")
        loop([2])
        assert session.rank == "driver"
        assert (session.path / "step-000002" / "manifest" / "step-rank-driver.json").exists()

    def test_an_unselected_rank_writes_no_manifest(self, init, log) -> None:
        """A rank that is not selected writes no manifest and logs no step as missed. It keeps its spans."""
        session = init({"steps": "2, 9"}, rank=1, world_size=2)
        loop([1, 2, 3])
        assert session.quiet[None][0] < 1 < session.quiet[None][1]
        assert ended(session) == []
        assert sorted(path.name for path in session.path.iterdir()) == ["run.json", "spans", "status"]
        assert [line for line in log if line["event"] == "step.not_reached"] == []

    @pytest.mark.torch
    def test_torch_distributed_is_initialised_later(self, run_script, warm) -> None:
        """The rank is read again at the first selected step, if torch.distributed
        was initialised after `init`.
        """
        script = """
            import json, os, sys, tempfile
            import stepprof
            session = stepprof.init({"steps": "2-4", "backend": "null", "ranks": sys.argv[1], "min_free_memory": "none"})
            assert session.rank == 0
            import torch.distributed as dist
            with stepprof.profile_step(1):
                pass
            store = dist.FileStore(tempfile.mkdtemp() + "/store", 2)
            if os.fork() == 0:
                dist.init_process_group("gloo", store=store, rank=0, world_size=2)
                dist.barrier()
                os._exit(0)
            dist.init_process_group("gloo", store=store, rank=1, world_size=2)
            dist.barrier()
            for step in (2, 3, 4):
                with stepprof.profile_step(step):
                    pass
            stepprof.shutdown()
            print(session.rank, sorted(path.name for path in session.path.glob("step-*/manifest/*")))
            os._exit(0)
        """
        ran = run_script(script, "1")
        assert "1 ['step-rank-1.json', 'step-rank-1.json', 'step-rank-1.json']" in ran.stdout, ran.stderr
        ran = warm.run(script, "0")
        assert "1 []" in ran.stdout, ran.stderr
        ran = warm.run(script, "0-7")
        assert "rank.nonexistent" in ran.stderr
        assert "there is no rank 2 in a world of 2" in ran.stderr


@pytest.mark.usefixtures("faulty")
class TestSteps:
    @pytest.mark.parametrize("step", [Number(2), Step.TWO, 2])
    def test_integers_of_every_kind(self, start, step) -> None:
        """Integers of other types are plain integers in the manifest and in the capture."""
        session = start(steps="2")
        loop([step])
        assert [w["step"] for w in ended(session)] == [2]
        assert type(control.captures[0].window.step) is int

    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            ("2", "step: expected an integer: 'str' object cannot be interpreted as an integer"),
            (2.0, "step: expected an integer: 'float' object cannot be interpreted as an integer"),
            (-1, "step: a negative number; expected one from 0 to 999999999999999999"),
            (None, "step = None: no step was entered in this process before"),
        ],
    )
    def test_an_invalid_step_is_reported_once(self, start, log, step, reason) -> None:
        """An invalid step is logged once, the body runs, and no backend is called."""
        start(steps="all")
        loop([step, step])
        assert [line["reason"] for line in log if line["event"] == "call.refused"] == [reason]
        assert control.calls == []

    def test_the_largest_step_can_be_read(self, start, log) -> None:
        """The largest step that is recorded is read again: its folder, its manifest and its spans. A larger
        one is refused, and leaves nothing behind.
        """
        session = start(steps="all")
        loop([LARGEST_STEP, LARGEST_STEP + 1])
        assert [w["step"] for w in ended(session)] == [LARGEST_STEP]
        refused = [line["reason"] for line in log if line["event"] == "call.refused"]
        assert refused == ["step: a number of more than 18 digits; expected one from 0 to 999999999999999999"]
        assert steps(session.path) == [LARGEST_STEP]
        assert read_step(session.path, LARGEST_STEP)["findings"] == []
        damage: list[dict[str, object]] = []
        spans = [span for span in read_spans(session.path, findings=damage) if span["kind"] == "window"]
        assert ([span["step"] for span in spans], damage) == ([LARGEST_STEP], [])

    def test_wrong_steps_do_not_fill_the_log(self, start, log) -> None:
        """With 1,000 different invalid roles, the log has fewer than 100 lines."""
        start(steps="all")
        for number in range(1000):
            with profile_step(1, role=f"../{number}"):
                pass
        assert 0 < len(log) < 100

    def test_no_step_is_the_last_one(self, start) -> None:
        """Without a step, a window belongs to the step that this process entered last."""
        session = start(steps="2")
        with profile_step(2):
            loop([None], role="reward")
        assert [(w["step"], w["role"]) for w in ended(session)] == [(2, None), (2, "reward")]

    @pytest.mark.parametrize("role", ["../x", "step", "", "a b", 7, ["x"], {}])
    def test_an_invalid_role_is_reported_once(self, start, log, role) -> None:
        """An invalid role is logged once, and the body runs, in each form of a window."""
        session = start(steps="all")
        ran = []

        async def asynchronous():
            async with profile_step(2, role=role):
                ran.append("async with")
            await (await profile_step(2, role=role).astart()).astop()

        with profile_step(2, role=role):
            ran.append("with")
        profile_step(2, role=role).start()
        asyncio.run(asynchronous())
        assert ran == ["with", "async with"]
        assert (
            len(
                {
                    line["reason"]
                    for line in log
                    if line["event"] == "call.refused" and line["what"] == "window"
                }
            )
            == 1
        )
        assert ended(session) == []

    def test_strict_raises(self, start) -> None:
        """With `strict`, each invalid step, role or stop raises a StateError."""
        start(steps="2", strict=True)
        for _ in range(2):
            with pytest.raises(StateError, match="expected an integer"):
                profile_step("2").__enter__()
            with pytest.raises(StateError, match="role"):
                profile_step(2, role="../x").__enter__()
            with pytest.raises(StateError, match="this window is not open"):
                profile_step(2).stop()

    def test_a_step_that_was_never_entered_is_reported(self, start, log) -> None:
        """At the end, one line names the selected steps that were never entered. Steps
        of a period are not expected.
        """
        start(steps="2, 5-7, every 100", roles={"ref": {"enabled": False}})
        loop([1, 2, 3, 4, 5])
        stepprof.shutdown()
        lines = [line for line in log if line["event"] == "step.not_reached"]
        assert [(line["steps"], line["role"], line["rank"]) for line in lines] == [("6-7", None, 0)]

    def test_a_step_that_was_never_entered_is_left_to_the_driver(self, start, log) -> None:
        """A session that follows another process does not log missed steps,
        because it does not see every role.
        """
        start(steps="2").lent = True
        stepprof.shutdown()
        assert [line for line in log if line["event"] == "step.not_reached"] == []

    def test_a_step_that_was_never_entered_in_a_role(self, start, log) -> None:
        """A missed step is logged for the role that has its own steps."""
        start(steps="2", roles={"actor": {"steps": "3"}, "ref": {}})
        loop([2], role="ref")
        loop([2], role="actor")
        stepprof.shutdown()
        lines = [line for line in log if line["event"] == "step.not_reached"]
        assert [(line["steps"], line["role"]) for line in lines] == [("3", "actor")]

    def test_an_endless_range_that_was_never_entered(self, start, log) -> None:
        """A missed range of any length is logged at once."""
        start(steps="2-999999999999")
        loop([2])
        stepprof.shutdown()
        assert [line["steps"] for line in log if line["event"] == "step.not_reached"] == ["3-999999999999"]

    def test_occurrences_are_counted_across_threads(self, start) -> None:
        """Windows of eight threads get 160 different numbers."""
        session = start(steps="2", capture_per="role")
        barrier = threading.Barrier(8)

        def work():
            barrier.wait(10)
            for _ in range(20):
                loop([2])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.selector.visits._counted[2, None].occurrence == 160

    def test_occurrences_of_long_ago_are_forgotten(self, start) -> None:
        """The number of occurrences in memory does not grow with the run."""
        session = start(steps="all", capture_per="role")
        loop(range(1000))
        assert len(session.selector.visits._counted) <= 257

    def test_a_session_that_follows_another_process_is_not_argued_with(self, start) -> None:
        """If a session follows another process, a later `init` returns it, whatever its configuration."""
        session = start(steps="2")
        session.lent = True
        assert stepprof.init({"steps": "9"}) is session

    def test_an_internal_error_does_not_reach_the_loop(self, start, log, monkeypatch) -> None:
        """An internal error, here a broken torch, is logged, and the loop
        continues. With `strict` it is raised.
        """

        def broken():
            raise RuntimeError("in pieces")

        distributed = SimpleNamespace(is_available=broken, is_initialized=broken)
        compiler = SimpleNamespace(is_compiling=lambda: False)
        start(steps="2")
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed, compiler=compiler))
        loop([1, 2, 3])
        asyncio.run(self.asynchronously(2))
        assert [line["event"] for line in log if line["log_level"] == "warning"] == ["internal.error"] * 2
        monkeypatch.delitem(sys.modules, "torch")
        stepprof.shutdown()
        start(steps="2", strict=True, run_id="strict")
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed, compiler=compiler))
        with pytest.raises(RuntimeError, match="in pieces"):
            loop([2])

    async def asynchronously(self, step) -> None:
        async with profile_step(step):
            pass


@pytest.mark.usefixtures("faulty")
class TestNullBackend:
    def test_the_null_backend_records_nothing(self, start) -> None:
        """The null backend has the states and the manifest of a capture, and no artifact."""
        session = start(steps="2", backend="null")
        with profile_step(2), region("x"):
            assert str(stepprof.state()) == "recording step=2 rank=0 backend=null"
            session.background.round()
        (window,) = ended(session)
        assert (window["status"], window["backend"], window["artifacts"]) == ("complete", "null", [])
        assert windows(session, 3) == []


class TestLeftOpen:
    """Windows that are still open when their session ends."""

    def test_open_windows_do_not_reach_into_the_next_session(self, start) -> None:
        """A region in the next session does not belong to a window that was left open in the previous one."""
        start(backend="null", steps="2")
        left = stepprof.profile_step(2, role="ref").start()
        stepprof.shutdown()
        session = start(backend="null", steps="2")
        with stepprof.region("later"):
            pass
        left.stop()
        stepprof.shutdown()
        lines = [
            json.loads(line)
            for path in (session.path / "spans").iterdir()
            for line in path.read_text().splitlines()
        ]
        spans = [line for line in lines if line["kind"] not in {"spans", *EVIDENCE}]
        assert [(line["name"], line["step"], line["role"]) for line in spans] == [
            ("ref", 2, "ref"),
            ("later", None, None),
        ]


class TestFollowKeys:
    def test_the_job_says_that_it_does_nothing_with_them(self, tmp_path, caplog) -> None:
        """The job checks the keys of `stepprof follow`, and does nothing with them. One process says so."""
        caplog.set_level("INFO")
        command = ["touch", str(tmp_path / "ran")]
        config = {"output_dir": str(tmp_path), "backend": "null", "steps": "1", "on_complete": command}
        for rank in (0, 1):
            stepprof.init({**config, "upload": f"file://{tmp_path}/up"}, rank=rank, world_size=2, run_id="r")
            with profile_step(1):
                pass
            stepprof.shutdown()
        (line,) = [each for each in caplog.messages if "follow.needed" in each]
        assert f"keys=on_complete, upload path={tmp_path}/r " in line
        assert not (tmp_path / "ran").exists()
        assert not (tmp_path / "r" / "after").exists()
        with pytest.raises(ConfigError, match="upload"):
            stepprof.init({**config, "upload": "s4://b"})

    def test_secrets_of_the_command_are_masked(self, tmp_path):
        """The arguments of `on_complete` are in run.json without the secrets among them."""
        command = [
            "notify",
            "--token",
            "abc-1",
            "password=abc-2",
            "https://me:abc-3@host/x?sig=abc-4",
            "-cabc",
        ]
        stepprof.init({"output_dir": str(tmp_path), "steps": "1", "backend": "null", "on_complete": command})
        stepprof.shutdown()
        (path,) = tmp_path.glob("*/run.json")
        shown = json.loads(path.read_text())["config"]["on_complete"]
        assert shown == ["notify", "--token", "…", "password=…", "https://…@host/x?sig=…", "-cabc"]
        assert not [each for each in tmp_path.rglob("*") if each.is_file() and b"abc-" in each.read_bytes()]


@pytest.mark.torch
class TestPermissions:
    def test_each_file_has_those_of_the_umask(self, warm, tmp_path) -> None:
        """Files and folders of a run, also the trace of a forked export, get the permissions of the job's umask."""
        warm.run(
            """
            import os, stepprof, torch
            os.umask(0o027)
            stepprof.init({"steps": "2", "output_dir": "runs"})
            for step in (1, 2, 3):
                with stepprof.profile_step(step):
                    torch.ones(8, 8) + 1
            stepprof.shutdown()
            """
        ).check()
        paths = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
        assert any(path.name.endswith(".trace.json.gz") for path in paths)
        wrong = [path for path in paths if path.stat().st_mode & 0o777 != (0o750 if path.is_dir() else 0o640)]
        assert not wrong
