"""Files and folders of an engine that runs as another user. stepprof reads, makes, moves and shows no file
of the driver's user for such an engine.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from other_user import OTHER_UID, as_other_user, needs_root, plant, server_of_other_user

from remote.test_artifacts import EVENT, kineto, written
from remote.vllm.test_driver import make_window
from stepprof.remote import artifacts
from stepprof.remote.artifacts import adopt, is_whole
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.core.engine_files import (
    check_named_folder,
    is_engine_file,
    open_engine_file,
    user_of_server,
    writers,
)
from stepprof.remote.http.client import Client
from stepprof.remote.loop import remote_loop
from stepprof.remote.sglang.driver import SglangDriver
from stepprof.remote.sglang.files import bring, discard, find, require_writable
from stepprof.remote.sglang.request import Facts, Request
from stepprof.remote.vllm.arguments import lay_out
from stepprof.remote.vllm.driver import VllmDriver
from stepprof.remote.vllm.folder import TraceFolder

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
NAME = "rank0.1790857026000000000.pt.trace.json"


@pytest.fixture
def window(tmp_path: Path) -> EngineWindow:
    """Return a window whose engine chooses the folder of its files."""
    return make_window(tmp_path)


def failure(work: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(EngineFailure) as caught:
        work(*arguments, **options)
    return str(caught.value)


class TestAdopt:
    @pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
    def test_a_link_is_not_followed(self, tmp_path, window, name) -> None:
        """If a trace is a link, its target is neither copied nor removed."""
        private = tmp_path / "private.json"
        private.write_text(kineto(EVENT))
        (tmp_path / name).symlink_to(private)
        failure(adopt, tmp_path / name, window, "rank-0")
        assert private.exists()
        assert list(window.output.iterdir()) == []

    @pytest.mark.parametrize("content", [KEY, '{"token": "hunter2 hunter2"', '{"traceEvents": [' + KEY])
    def test_no_message_shows_the_content_of_a_file(self, tmp_path, window, content) -> None:
        """The failure contains no content of the file, because it is written into the manifest."""
        said = failure(adopt, written(tmp_path, content, "a.json"), window, "rank-0")
        assert not any(part in said for part in ("BEGIN", "OPENSSH", "b3Bl", "hunter2"))

    def test_a_large_file_shows_nothing_either(self, tmp_path, window) -> None:
        """The failure of a file that is too large to be parsed contains no content of the file either."""
        content = '{"traceEvents": [' + ",\n".join([EVENT] * 20_000) + KEY
        said = failure(adopt, written(tmp_path, content, "a.json"), window, "rank-0")
        assert "breaks off after" in said
        assert "KEY" not in said

    def test_a_pipe_is_not_waited_for(self, tmp_path, window) -> None:
        """A pipe or a folder in the place of a trace is refused without waiting."""
        os.mkfifo(tmp_path / "a.json")
        (tmp_path / "b.json").mkdir()
        began = time.monotonic()
        for name in ("a.json", "b.json"):
            failure(adopt, tmp_path / name, window, "rank-0")
        assert time.monotonic() - began < 20

    def test_more_than_any_engine_writes(self, tmp_path, window, monkeypatch) -> None:
        """A compressed file is refused if it unpacks to more than the limit."""
        monkeypatch.setattr(artifacts, "MOST_BYTES", 1 << 24)
        source = tmp_path / "a.json.gz"
        source.write_bytes(gzip.compress(b'{"traceEvents": [' + b"\n" * (1 << 26)))
        assert "is larger than" in failure(adopt, source, window, "rank-0")
        assert list(window.output.iterdir()) == []

    @needs_root
    def test_a_file_of_a_third_user(self, tmp_path, window) -> None:
        """If the engine's user is known, only files of that user are accepted."""
        source = written(tmp_path, kineto(EVENT), "a.json")
        os.chown(source, 1234, 1234)
        assert "not a file of the engine's user" in failure(
            adopt, source, window, "rank-0", users=writers(OTHER_UID)
        )
        os.chown(source, OTHER_UID, OTHER_UID)
        assert adopt(source, window, "rank-0", users=writers(OTHER_UID)).events == 1


class TestWriters:
    def test_files_of_the_own_user(self) -> None:
        """If the engine runs as the driver's user, files of that user and of root are accepted."""
        assert writers(os.geteuid()) == {os.geteuid(), 0}

    def test_files_of_another_user(self) -> None:
        """If the engine runs as another user, only that user's files are accepted. A hard link to a file
        of the driver's user is not.
        """
        assert writers(os.geteuid() + 4321) == {os.geteuid() + 4321}

    def test_with_an_unknown_user_files_of_all_are_accepted(self) -> None:
        """If the user is unknown, as on another host, files of every user are accepted."""
        assert writers(None) is None


class TestUserOfServer:
    def test_a_server_of_this_user_is_found_in_both_families(self) -> None:
        """The user is found for servers that listen on IPv4 and on IPv6."""
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as listening:
                listening.bind((host, 0))
                listening.listen()
                assert user_of_server(listening.getsockname()[1]) == os.geteuid()

    def test_without_a_listener_the_user_is_unknown(self, tmp_path) -> None:
        """The user is unknown if no process listens on the port, or if the kernel's table is missing or
        cut off.
        """
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        assert user_of_server(port) is None
        (tmp_path / "tcp").write_text("header\n 0: x\n")
        assert user_of_server(port, tables=(tmp_path / "none", tmp_path / "tcp")) is None

    @needs_root
    def test_a_server_of_another_user(self) -> None:
        """The user of the listening process is returned, not the user of this process."""
        with server_of_other_user({}) as port:
            assert user_of_server(port) == OTHER_UID


@needs_root
class TestServerOfAnotherUser:
    def arm(self, folder: Path, window: EngineWindow) -> str | None:
        """Arm a server that names this folder as the place of its traces; return the failure, or None."""
        config = {
            "vllm_config": {"profiler_config": {"profiler": "torch", "torch_profiler_dir": str(folder)}}
        }
        routes = {
            "GET /start_profile": (405, ""),
            "GET /health": (200, ""),
            "GET /version": (200, '{"version": "0.32.0"}'),
            "GET /server_info?config_format=json": (200, json.dumps(config)),
        }
        with server_of_other_user(routes) as port:
            driver = VllmDriver.of_server(Client(f"http://127.0.0.1:{port}"))
            try:
                remote_loop().submit(driver.arm(window)).result(20)
            except EngineFailure as error:
                return str(error)
        return None

    @pytest.mark.parametrize("name", ["new", "new/deeper", "there", "there/current", "link"])
    def test_names_a_folder_of_the_drivers_user(self, tmp_path, window, name) -> None:
        """The server names a folder of the driver's user. Nothing is made there, and the failure suggests
        `trace_dir`.
        """
        home = tmp_path / "home"
        (home / "there").mkdir(parents=True)
        (home / "link").symlink_to("there")
        before = sorted(home.rglob("*"))
        said = self.arm(home / name, window)
        assert said is not None
        assert f"runs as user {OTHER_UID}" in said
        assert "trace_dir=" in said
        assert sorted(home.rglob("*")) == before

    def test_names_a_folder_of_its_own(self, shared, window) -> None:
        """A folder of the server's own user is accepted."""
        as_other_user('mkdir "$1/traces"', shared)
        assert self.arm(shared / "traces", window) is None

    def test_names_a_folder_that_was_prepared_for_it(self, shared, window) -> None:
        """A folder that `serve_args` made is accepted, because the driver's user chose it."""
        link = lay_out(shared / "traces")
        assert self.arm(link, window) is None

    def test_a_prepared_folder_that_it_made_itself(self, tmp_path, shared, window) -> None:
        """A link that the server's user made to a folder of the driver's user is refused, and nothing is
        made there.
        """
        (tmp_path / "home").mkdir()
        as_other_user('ln -s "$2" "$1/current"', shared, tmp_path / "home")
        assert check_refuses(shared / "current")
        assert list((tmp_path / "home").iterdir()) == []


def check_refuses(folder: Path, user: int | None = OTHER_UID) -> bool:
    try:
        check_named_folder(folder, user)
    except EngineFailure:
        return True
    return False


class TestNamedFolder:
    def test_a_folder_of_an_unknown_user(self, tmp_path) -> None:
        """If the server's user is unknown, only a folder that was prepared for an engine is accepted."""
        assert check_refuses(tmp_path, None)
        assert not check_refuses(lay_out(tmp_path / "traces"), None)

    def test_a_folder_of_the_own_user(self, tmp_path) -> None:
        """A folder is accepted for a server of this user, even if it does not exist yet."""
        assert not check_refuses(tmp_path / "new", os.geteuid())


class TestTraceFolder:
    def folder(self, tmp_path: Path, **options: Any) -> TraceFolder:
        link = lay_out(tmp_path / "traces")
        return TraceFolder(link.parent, "server", lambda: True, shared=True, **options)

    def test_a_link_for_the_lock(self, tmp_path) -> None:
        """If the lock file is a link, the folder is refused and no file is made at the link's target."""
        folder = self.folder(tmp_path)
        (folder.path.parent / ".owner").symlink_to(tmp_path / "made")
        assert "cannot be used" in failure(folder.prepare)
        assert not (tmp_path / "made").exists()

    def test_only_plain_files_are_traces(self, tmp_path, window) -> None:
        """Links, pipes and folders with the name of a trace are neither listed as traces nor removed."""
        folder = self.folder(tmp_path)
        folder.prepare()
        session = folder.begin(window)
        (tmp_path / "private.json").write_text(KEY)
        (session.folder / f"a{NAME}").symlink_to(tmp_path / "private.json")
        os.mkfifo(session.folder / f"b{NAME}")
        (session.folder / f"c{NAME}").mkdir()
        (session.folder / NAME).write_text("{}")
        assert folder.traces(session, "") == [session.folder / NAME]
        folder.discard(session, "")
        assert (tmp_path / "private.json").read_text() == KEY

    @needs_root
    def test_files_of_another_user_are_left_alone(self, tmp_path, window) -> None:
        """A file of another user in a shared folder is not listed as a trace of the engine."""
        folder = self.folder(tmp_path, users=writers(os.geteuid()))
        folder.prepare()
        session = folder.begin(window)
        (session.folder / NAME).write_text("{}")
        os.chown(session.folder / NAME, OTHER_UID, OTHER_UID)
        assert folder.traces(session, "") == []

    def test_a_folder_that_was_exchanged_for_a_link(self, tmp_path, window) -> None:
        """If the folder is replaced by a link, no file is removed at the link's target."""
        folder = self.folder(tmp_path)
        folder.prepare()
        session = folder.begin(window)
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "profiler_out_0.txt").touch()
        session.folder.rmdir()
        session.folder.symlink_to(tmp_path / "home")
        folder.end(session)
        assert (tmp_path / "home" / "profiler_out_0.txt").exists()


def no_links(path: Path, target: Path) -> None:
    """Raise the error of a file system without hard links."""
    raise PermissionError(1, "no links here")


FIELDS = {
    "components": {
        "schemas": {"ProfileReq": {"properties": {key: {} for key in ("output_dir", "with_stack")}}}
    }
}


class TestSglang:
    def test_only_plain_files_are_traces(self, tmp_path) -> None:
        """Links and pipes are no traces, and neither are files in a linked folder of torch_npu."""
        (tmp_path / "private.json").write_text(KEY)
        folder = tmp_path / "traces"
        folder.mkdir()
        (folder / "a-TP-0.trace.json.gz").symlink_to(tmp_path / "private.json")
        os.mkfifo(folder / "b-TP-1.trace.json.gz")
        (tmp_path / "home" / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        (tmp_path / "home" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text("[]")
        (folder / "x_ascend_pt").symlink_to(tmp_path / "home")
        assert find(folder) == []
        assert not is_whole(folder / "a-TP-0.trace.json.gz")
        assert not is_whole(folder / "b-TP-1.trace.json.gz")

    TRACE = "x-TP-0.trace.json"
    SNAPSHOT = "x-TP-0-memory.pickle"
    ASCEND = "h_7_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"

    @needs_root
    def test_files_of_another_user_are_left_alone(self, window) -> None:
        """Traces, snapshots and folders of torch_npu that belong to another user are neither brought into
        the run nor removed.
        """
        folder = window.output
        facts = Facts("engine", users=writers(os.geteuid()))
        both = Request({}, backends=("torch", "memory"))
        for name in (self.TRACE, self.SNAPSHOT, self.ASCEND):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            written(folder, kineto(EVENT), name)
            os.chown(folder / name, OTHER_UID, OTHER_UID)
        assert find(folder, facts.users) == []
        assert not is_whole(folder / self.TRACE, facts.users)
        brought = bring(folder, window, facts, both)
        assert brought.artifacts == []
        assert brought.problems == ["no memory snapshot of the engine's rank 0"]
        discard(folder, facts.users)
        assert all((folder / name).exists() for name in (self.TRACE, self.SNAPSHOT, self.ASCEND))

    @needs_root
    @pytest.mark.parametrize("name", [TRACE, ASCEND])
    @pytest.mark.parametrize("links", [True, False])
    def test_files_of_an_engine_of_another_user(self, window, monkeypatch, name, links) -> None:
        """The engine's own files are moved, also from a folder of torch_npu without hard links. A file of
        the driver's user is refused.
        """
        if not links:
            monkeypatch.setattr(Path, "hardlink_to", no_links)
        file = window.output / name
        file.parent.mkdir(parents=True, exist_ok=True)
        written(window.output, kineto(EVENT), name)
        facts = Facts("engine", users=writers(OTHER_UID))
        assert bring(window.output, window, facts, Request({})).artifacts == []
        os.chown(file, OTHER_UID, OTHER_UID)
        (artifact,) = bring(window.output, window, facts, Request({})).artifacts
        assert artifact.events == 1

    def record(self, window: EngineWindow, owners: list[int]) -> Stopped:
        """Record with a server of another user; each rank's trace belongs to one of these owners."""
        routes = {
            "GET /server_info": (200, json.dumps({"tp_size": len(owners), "version": "0.5.23"})),
            "GET /openapi.json": (200, json.dumps(FIELDS)),
            "POST /start_profile": (200, ""),
            "POST /stop_profile": (200, ""),
        }
        with server_of_other_user(routes) as port:
            driver = SglangDriver.of_server(Client(f"http://127.0.0.1:{port}"))
            for verb in (driver.arm, driver.start):
                remote_loop().submit(verb(window)).result(20)
            assert driver.writes_to is not None
            for rank, user in enumerate(owners):
                os.chown(written(driver.writes_to, kineto(EVENT), f"x-TP-{rank}.trace.json"), user, user)
            return remote_loop().submit(driver.stop(window)).result(20)

    @needs_root
    def test_a_server_of_another_user(self, shared, tmp_path) -> None:
        """The trace of the server's user becomes an artifact. The trace of a third user stays, and the
        result is partial.
        """
        stopped = self.record(make_window(tmp_path, trace_dir=shared), [OTHER_UID, 1234])
        assert [Path(artifact.path).name for artifact in stopped.artifacts] == ["rank-0.trace.json.gz"]
        assert stopped.partial == "no trace of the engine's rank 1 of 2"
        assert [path.name for path in shared.rglob("*.json")][-1] == "x-TP-1.trace.json"

    @needs_root
    def test_files_of_a_third_user_are_named_in_the_reason(self, shared, tmp_path) -> None:
        """The failure says that the files belong to another user than the engine."""
        said = failure(self.record, make_window(tmp_path, trace_dir=shared), [1234])
        assert "belong to another user than the engine" in said

    @needs_root
    def test_the_trial_of_a_folder_writes_through_no_link(self, shared) -> None:
        """The test whether a folder is writable does not write through a link that another user has placed
        there.
        """
        target = shared / "target"
        target.write_text(KEY)
        target.chmod(0o600)
        folder = shared / "traces"
        plant(folder / "x", "")
        as_other_user(
            'for pid in "$2"; do ln -s "$3" "$1/.stepprof-probe-$pid"; done', folder, os.getpid(), target
        )
        require_writable(folder, "started")
        assert target.read_text() == KEY


class TestOpen:
    def test_a_plain_file(self, tmp_path) -> None:
        """A plain file of this user can be opened and counts as an engine's file; a missing file does not."""
        (tmp_path / "a").write_bytes(b"x")
        with open_engine_file(tmp_path / "a", frozenset({os.geteuid()})) as file:
            assert file.read() == b"x"
        assert is_engine_file(tmp_path / "a", None)
        assert not is_engine_file(tmp_path / "none", None)
