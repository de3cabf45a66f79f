"""The code that runs inside an actor, tested without an actor: its entry is called on the main thread and
on others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import stepprof
from stepprof.config.options.engine import EngineOptions
from stepprof.host.process_identity import writer_identity
from stepprof.instrument.context import cell
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.remote.core import lease
from stepprof.remote.core.lease import Lease, new_lease, watch
from stepprof.remote.ray.inside import attachment as attachment_module
from stepprof.remote.ray.inside import attachment as inside_guest
from stepprof.remote.ray.inside.attachment import Guest
from stepprof.remote.ray.inside.entry import serve
from stepprof.remote.ray.inside.find_engine import locate
from stepprof.remote.ray.inside.messages import Attachment, Inside, Unknown
from stepprof.run.layout import step_folder
from stepprof.run.model import Window
from stepprof.run.requests import Request


@pytest.fixture
def run(tmp_path):
    """Return the run's folder of the driver process, with the marker file by which an actor recognises it."""
    run = tmp_path / "runs" / "job"
    run.mkdir(parents=True)
    (run / ".seen").touch()
    yield run
    stepprof.shutdown()


@pytest.fixture
def attachment(run):
    """Return a function that makes the attachments that the driver process sends."""

    def attachment(kind="engine", **fields):
        config = {"steps": "2-4", "ranks": "all", "backend": "null", "output_dir": "elsewhere"}
        values = {
            "find": "engine" if kind == "engine" else None,
            "rank": None,
            "position": 0,
            "world_size": None,
        }
        values |= {"config": config, "run_id": "job", "output_dir": str(run.parent), "marker": ".seen"}
        return Attachment(kind=kind, **{**values, **fields})

    return attachment


def window(run, step=2, role="rollout", *, rank=False):
    """Return a window as the driver makes it."""
    folder, stem = (run, "") if rank else (run / step_folder(step), f"{role}/replica-0")
    (folder / stem).mkdir(parents=True, exist_ok=True)
    return EngineWindow(Window(step, role), 0, folder, stem, EngineOptions(), {"step": step})


@pytest.fixture(params=["main thread", "other thread"])
def ask(request):
    """Return a function that calls the entry on the main thread or on another thread, and waits for the
    answer.
    """

    def ask(actor, verb, *arguments, token=request.node.name):
        return until_answered(entry(request.param, actor, token, verb, *arguments), request.param)

    return ask


def entry(where, *arguments):
    if where == "main thread":
        return serve(*arguments)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(serve(*arguments)))
    thread.start()
    thread.join(10)
    return answers[0]


def until_answered(answer, where="main thread"):
    while answer.ticket is not None:
        time.sleep(0.005)
        answer = entry(where, None, "", "answer", answer.ticket)
    if answer.failure is not None:
        raise answer.failure
    return answer.value


class TestEngines:
    """An engine that an actor holds."""

    def test_a_window(self, ask, run, attachment, engine):
        """The engine is found, armed, started and stopped. Its file is in the run's folder, which the
        driver sees.
        """
        actor, here = SimpleNamespace(engine=engine()), window(run)
        facts = ask(actor, "arm", attachment(), here)
        assert (facts.kind, facts.visible, facts.rank) == ("simulated", True, None)
        assert ask(actor, "start", here) is None
        report = ask(actor, "stop", here)
        assert (here.folder / report.stopped.artifacts[0].path).is_file()
        assert actor.engine.calls == ["arm", "start", "stop"]
        assert ask(actor, "leave", 5.0) == []

    def test_a_disk_of_its_own(self, ask, run, attachment, engine, tmp_path):
        """If the actor does not see the run's folder, its files stay on its own disk, and the report names
        the folder.
        """
        actor, here = SimpleNamespace(engine=engine()), window(run)
        disk = tmp_path / "disk"
        assert not ask(actor, "arm", attachment(own_dir=str(disk)), here).visible
        ask(actor, "start", here)
        report = ask(actor, "stop", here)
        assert report.folder == str(disk / "job" / "step-000002")
        assert (disk / "job" / "step-000002" / report.stopped.artifacts[0].path).is_file()

    def test_the_same_path_on_another_disk(self, run, attachment, engine):
        """A folder with the same path does not count as shared if the driver's marker file is missing in
        it.
        """
        facts = until_answered(
            serve(
                SimpleNamespace(engine=engine()), "same", "arm", attachment(marker=".seen-other"), window(run)
            )
        )
        assert not facts.visible

    def test_abort(self, ask, run, attachment, engine):
        """An abort before the arm does nothing; after the arm it aborts the engine."""
        actor, here = SimpleNamespace(engine=engine()), window(run)
        ask(actor, "abort")
        ask(actor, "arm", attachment(), here)
        ask(actor, "abort")
        assert actor.engine.calls == ["arm", "abort"]

    def test_an_engine_that_hangs(self, run, attachment, engine):
        """A start that hangs blocks the actor only for the timeout. Its answer can be fetched later."""
        hold = threading.Event()
        actor, here = SimpleNamespace(engine=engine(hold={"start": hold})), window(run)
        until_answered(serve(actor, "hangs", "arm", attachment(start_seconds=0.2), here))
        began = time.monotonic()
        answer = serve(actor, "hangs", "start", here)
        assert 0.2 <= time.monotonic() - began < 2
        assert answer.ticket is not None
        hold.set()
        assert until_answered(answer) is None
        until_answered(serve(actor, "hangs", "stop", here))

    def test_a_stop_that_never_comes(self, run, attachment, engine, monkeypatch):
        """If no stop arrives, the actor stops the capture after its maximum duration, so that it does not
        grow without limit.
        """
        monkeypatch.setattr(inside_guest, "GRACE_SECONDS", 0.0)
        actor, here = SimpleNamespace(engine=engine()), window(run)
        until_answered(serve(actor, "gone", "arm", attachment(max_seconds=0.2), here))
        until_answered(serve(actor, "gone", "start", here))
        deadline = time.monotonic() + 5
        while "stop" not in actor.engine.calls and time.monotonic() < deadline:
            time.sleep(0.01)
        assert actor.engine.calls == ["arm", "start", "stop"]

    def test_an_engine_that_raises(self, ask, run, attachment, engine):
        """An exception of the engine is returned as a failure. After a failed start, a stop must follow."""
        actor, here = SimpleNamespace(engine=engine(failing={"start": ValueError("odd")})), window(run)
        ask(actor, "arm", attachment(), here)
        with pytest.raises(EngineFailure, match="in the actor: ValueError: odd") as caught:
            ask(actor, "start", here)
        assert caught.value.owes_stop

    def test_an_unknown_exception_class_is_returned_as_plain(self, run, attachment, engine):
        """A failure of a class that the driver process may not have is returned as a plain EngineFailure."""

        class OwnError(EngineFailure):
            def __init__(self):
                super().__init__("own", "busy", owes_stop=True)

        actor, here = (
            SimpleNamespace(engine=engine(failing={"start": OwnError()})),
            window(run),
        )
        until_answered(serve(actor, "odd", "arm", attachment(), here))
        with pytest.raises(EngineFailure, match="OwnError: own") as caught:
            until_answered(serve(actor, "odd", "start", here))
        assert (type(caught.value), caught.value.health, caught.value.owes_stop) == (
            EngineFailure,
            "busy",
            True,
        )

    def test_a_process_that_was_not_armed_was_restarted(self, ask, run):
        """A start or an answer that the process does not know raises Unknown: the actor has been
        restarted.
        """
        with pytest.raises(Unknown, match="restarted"):
            ask(None, "start", window(run))
        with pytest.raises(Unknown, match="restarted"):
            until_answered(serve(None, "", "answer", 10**9))
        assert ask(None, "leave", 1.0) == []

    def test_the_worker_is_this_process(self, ask, run, attachment, engine):
        """An engine whose worker is the actor's own process is not armed; the error suggests
        `kind="both"`.
        """
        with pytest.raises(Inside, match='kind="both"'):
            ask(SimpleNamespace(engine=engine(inside=True)), "arm", attachment(), window(run))

    def test_the_only_engine_is_found(self, run, attachment, engine):
        """The only engine among the actor's attributes is used. If there are two, the failure names both."""
        guest = Guest("token")
        actor = SimpleNamespace(name="x", none=None, llm=engine(), url="http://localhost:1")
        assert guest.arm(actor, attachment(find=None), window(run)).kind == "simulated"
        actor.other = engine()
        with pytest.raises(EngineFailure, match=r"several are engines \(llm, other\)"):
            Guest("token").arm(actor, attachment(find=None), window(run, 3))

    @pytest.mark.parametrize(
        ("find", "message"),
        [
            ("engin", 'has no attribute "engin"; did you mean "engine"'),
            ("engine.llm", 'has no attribute "llm" \\(it has: '),
            ("missing", 'find = "missing" is None: a headless node'),
            (lambda actor: actor.engine / 0, "find raised TypeError"),
        ],
    )
    def test_engines_that_cannot_be_found(self, find, message):
        """Each reason why the engine cannot be found has its own message."""
        with pytest.raises(EngineFailure, match=message) as caught:
            locate(SimpleNamespace(engine=SimpleNamespace(a=1), missing=None), find)
        assert caught.value.health == "unconfigured"

    def test_a_folder_that_cannot_be_made(self, run, attachment, engine, tmp_path):
        """The failure names the host and suggests to attach with `output_dir`."""
        (tmp_path / "file").touch()
        with pytest.raises(EngineFailure, match=r"cannot be made on .*; attach with output_dir"):
            Guest("token").arm(
                SimpleNamespace(engine=engine()), attachment(own_dir=str(tmp_path / "file")), window(run)
            )


def fragment(path):
    """Return the windows in a fragment, once the capture is final."""
    deadline = time.monotonic() + 10
    while True:
        windows = json.loads(path.read_text())["windows"]
        if windows[0]["status"] != "lost" or time.monotonic() > deadline:
            return windows
        time.sleep(0.01)


class TestSessions:
    """A session that follows the windows of another process."""

    def test_a_rank(self, ask, run, attachment):
        """The actor's session has the driver's configuration and run, and its own rank. It ends when the
        driver leaves.
        """
        here = window(run, role="actor", rank=True)
        facts = ask(None, "arm", attachment("rank", position=3), here)
        assert (facts.rank, facts.visible, cell.session.run_id) == (3, True, "job")
        path = ask(None, "start", here)
        assert path == str(run / "step-000002" / "manifest" / "actor-rank-3.json")
        assert stepprof.state().status == "recording"
        report = ask(None, "stop", here)
        assert (report.fragment, report.folder) == (path, None)
        assert ask(None, "leave", 5.0) == []
        assert cell.session is None
        (reported,) = fragment(run / "step-000002" / "manifest" / "actor-rank-3.json")
        assert (reported["status"], reported["rank"]) == ("complete", 3)

    def test_a_disk_of_its_own(self, ask, run, attachment, tmp_path):
        """If the run's folder is on the actor's own disk, leaving returns the paths of the span files."""
        here = window(run, role="actor", rank=True)
        assert not ask(None, "arm", attachment("rank", own_dir=str(tmp_path / "disk")), here).visible
        ask(None, "start", here)
        assert ask(None, "stop", here).fragment.startswith(str(tmp_path / "disk" / "job" / "step-000002"))
        assert ask(None, "leave", 5.0) == [str(tmp_path / "disk" / "job" / "spans" / "rank-0.000001.jsonl")]

    def test_refusals(self, run, attachment):
        """A second start, a stop without a start, and a step that the actor does not select are failures."""
        here = window(run, role="actor", rank=True)
        guest = Guest("token")
        guest.arm(None, attachment("rank"), here)
        with pytest.raises(EngineFailure, match="no window of step 2 is open"):
            guest.stop(here)
        guest.start(here)
        with pytest.raises(EngineFailure, match="open in the actor already"):
            guest.start(here)
        with pytest.raises(
            EngineFailure, match=r"does not select step 9 of rank 0 \(steps = 2-4, ranks = all\)"
        ):
            guest.arm(None, attachment("rank"), window(run, 9, rank=True))
        guest.leave(5.0)

    def test_a_request_reaches_the_actor_with_its_window(self, run, attachment):
        """The driver sends a request together with the window, and the actor records it. An invalid
        request is refused.
        """
        here, guest = window(run, 9, role="actor", rank=True), Guest("token")
        asked = Request.make(9, role="actor")
        guest.arm(None, attachment("rank", requests=(asked.to_dict(),)), here)
        guest.start(here)
        assert stepprof.state().status == "recording"
        guest.stop(here)
        with pytest.raises(EngineFailure, match="cannot be met in the actor: step = -1"):
            guest.arm(None, attachment("rank", requests=({"name": "x", "step": -1},)), here)
        guest.leave(5.0)
        (reported,) = fragment(run / "step-000009" / "manifest" / "actor-rank-0.json")
        assert reported["status"] == "complete"

    def test_abort(self, run, attachment):
        """An abort closes the open window as partial."""
        here = window(run, role="actor", rank=True)
        guest = Guest("token")
        guest.arm(None, attachment("rank"), here)
        path = run / "step-000002" / "manifest" / "actor-rank-0.json"
        guest.start(here)
        guest.abort()
        (reported,) = fragment(path)
        assert (reported["status"], reported["error"]) == (
            "partial",
            "the driver process aborted the window",
        )
        guest.leave(5.0)

    def test_two_attachments_share_one_session(self, run, attachment):
        """Two attachments of one actor share its session, which ends when the second one leaves."""
        one, other = Guest("token"), Guest("token")
        one.arm(None, attachment("rank"), window(run, role="actor", rank=True))
        other.arm(None, attachment("rank"), window(run, role="ref", rank=True))
        one.leave(5.0)
        assert cell.session is not None
        other.leave(5.0)
        assert cell.session is None

    def test_an_existing_session_is_used(self, run, attachment):
        """If the actor already has a session, it is used, and leaving does not end it."""
        session = stepprof.init(
            {"output_dir": run.parent, "steps": [2], "backend": "null"}, rank=0, run_id="job"
        )
        guest = Guest("token")
        guest.arm(None, attachment("rank"), window(run, role="actor", rank=True))
        guest.leave(5.0)
        assert cell.session is session

    def test_a_configuration_that_is_invalid_in_the_actor(self, run, attachment, monkeypatch):
        """If the configuration is invalid in the actor, the driver process gets the error."""
        monkeypatch.setenv("RANK", "5")
        config = {"steps": "2", "ranks": "7", "output_dir": "x"}
        with pytest.raises(EngineFailure, match=r"no session in the actor.*ranks") as caught:
            Guest("token").arm(None, attachment("rank", config=config, world_size=6), window(run, rank=True))
        assert caught.value.health == "unconfigured"

    def test_a_process_with_stepprof_off_is_named(self, run, attachment, monkeypatch):
        """If STEPPROF=0 is set in the actor, the failure says so."""
        monkeypatch.setenv("STEPPROF", "0")
        with pytest.raises(EngineFailure, match="switched off in the actor \\(STEPPROF = '0'"):
            Guest("token").arm(None, attachment("rank"), window(run, rank=True))

    def test_spans(self, ask, run, attachment):
        """Regions in the actor have the step that the driver announced, until the driver announces its
        end. No capture runs.
        """
        assert not ask(None, "announce", 0, [(1, None)])
        ask(None, "join", attachment("spans"))
        for step in (2, 3):
            assert ask(None, "announce", 2 * step, [(step, "rollout")])
            assert ask(None, "announce", 1, [(9, None)])  # an older announcement that arrives late
            with stepprof.region("score"):
                pass
            assert stepprof.current_step() == step
        ask(None, "announce", 7, [])
        assert stepprof.current_step() is None
        with stepprof.profile_step(role="reward"), stepprof.region("own"):
            pass
        ask(None, "leave", 5.0)
        (path,) = (run / "spans").iterdir()
        spans = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        found = [(span["name"], span["step"], span["role"]) for span in spans if span["kind"] == "region"]
        assert found == [("score", 2, "rollout"), ("score", 3, "rollout"), ("own", 3, "reward")]
        assert not (run / "step-000002").exists()


class TestLeases:
    """What ends in the actor when the driver process ends."""

    @pytest.fixture
    def driver(self, monkeypatch):
        """Start a process that lives until it is killed. The actor checks it more often than in a job."""
        monkeypatch.setattr(lease, "LOOK_SECONDS", 0.02)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        yield process
        process.kill()
        process.wait()
        process.stdin.close()

    def kill(self, process):
        """Kill the process, and wait until the actor has noticed it."""
        self.kill_only(process)
        deadline = time.monotonic() + 10
        while watch._leases and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)

    def kill_only(self, process):
        """Kill the process."""
        process.kill()
        process.wait()

    @pytest.mark.parametrize("left", [True, False])
    def test_an_idle_engine_is_left_alone(self, ask, run, attachment, engine, driver, left):
        """If the driver is killed, an idle engine gets no call, because another run may already record it."""
        actor = SimpleNamespace(engine=engine())
        ask(actor, "arm", attachment(lease=Lease(writer_identity(driver.pid))), window(run))
        if left:
            ask(actor, "leave", 5.0)
        self.kill(driver)
        assert actor.engine.calls == ["arm"]

    def test_a_recording_engine_is_stopped(self, ask, run, attachment, engine, driver):
        """If the driver is killed while the engine records, the actor stops the engine."""
        actor, here = SimpleNamespace(engine=engine()), window(run)
        ask(actor, "arm", attachment(lease=Lease(writer_identity(driver.pid))), here)
        ask(actor, "start", here)
        self.kill(driver)
        assert actor.engine.calls == ["arm", "start", "stop"]

    def test_the_session_ends(self, ask, run, attachment, driver):
        """If the driver is killed, the actor's session ends and its open window is partial."""
        here = window(run, rank=True)
        ask(None, "arm", attachment("rank", lease=Lease(writer_identity(driver.pid))), here)
        fragment = ask(None, "start", here)
        self.kill(driver)
        deadline = time.monotonic() + 10
        while cell.session is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        [reported] = json.loads(Path(fragment).read_text())["windows"]
        assert (reported["status"], reported["error"]) == (
            "partial",
            "the process that drives this one has ended",
        )

    def test_a_run_after_another_of_one_driver(self, ask, run, attachment, driver):
        """A driver process has one run at a time. When its next run begins, the actor's session of the
        previous run ends.
        """
        held = Lease(writer_identity(driver.pid))
        ask(None, "join", attachment("spans", lease=held), token="before")
        facts = ask(None, "join", attachment("spans", lease=held, run_id="next", marker=""), token="after")
        assert facts.rank is not None
        assert cell.session.run_id == "next"
        ask(None, "leave", 5.0, token="after")

    def test_two_drivers_of_one_run_share_the_session(self, ask, run, attachment, driver):
        """Two drivers of one run share the actor's session, which ends with the last driver."""
        ask(None, "join", attachment("spans", lease=Lease(writer_identity(driver.pid))), token="one")
        ask(None, "join", attachment("spans", lease=new_lease()), token="other")
        session = cell.session
        self.kill_only(driver)
        deadline = time.monotonic() + 10
        while "one" in attachment_module.guests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert cell.session is session
        ask(None, "leave", 5.0, token="other")
        assert cell.session is None

    def test_a_session_of_a_living_driver_is_not_taken(self, ask, run, attachment, driver):
        """A driver of another run is refused while the first driver lives; the failure names the run and
        the driver.
        """
        ask(None, "join", attachment("spans", lease=Lease(writer_identity(driver.pid))), token="before")
        with pytest.raises(
            EngineFailure, match=f"run job, whose driver is alive .pid {driver.pid}"
        ) as caught:
            ask(None, "join", attachment("spans", lease=new_lease(), run_id="next"), token="after")
        assert caught.value.health == "busy"
        ask(None, "leave", 5.0, token="before")
