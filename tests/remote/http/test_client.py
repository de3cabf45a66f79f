"""One request to a server: the content of its errors, and keys that are never shown."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
import time
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from serving import serving

from stepprof.errors import ConfigError
from stepprof.remote.base import EngineFailure
from stepprof.remote.http.address import Address
from stepprof.remote.http.client import Client

CERTIFICATE = Path(__file__).parents[2] / "data" / "localhost.pem"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("http://Node-3:8000", "http://node-3:8000"),
            ("http://node-3:8000/", "http://node-3:8000"),
            (" HTTP://node-3 ", "http://node-3"),
            ("https://node-3:443/llm/", "https://node-3/llm"),
            ("http://me:s3cret@node-3:8000/v1", "http://node-3:8000/v1"),
            ("http://[2001:db8::1]:8000", "http://[2001:db8::1]:8000"),
        ],
    )
    def test_a_server_has_one_name_without_secrets(self, url, name):
        """A server has the same name in every spelling of its URL, and the name contains no password."""
        address = Address.parse(url)
        assert address.name == name
        assert "s3cret" not in repr(address)

    @pytest.mark.parametrize(
        "url",
        [
            "http://",
            "ftp://node",
            "http://node:99999",
            "http://node:x",
            "http://[::1",
            "http://node/a b",
            "node",
        ],
    )
    def test_invalid_addresses_are_refused(self, url):
        """An invalid address raises ConfigError."""
        with pytest.raises(ConfigError):
            Address.parse(url)

    def test_a_key_in_the_query_is_not_shown(self):
        """A key in the query of the URL is refused, and the error shows neither the key nor the password."""
        with pytest.raises(ConfigError, match="api_key") as refused:
            Address.parse("http://me:pass@node:8000/?key=s3cret")
        assert "s3cret" not in str(refused.value)
        assert "pass" not in str(refused.value)

    def test_localhost_is_a_server_of_this_host(self):
        """All spellings of the local host have one key, which contains the host's name. Another host's
        name is kept.
        """
        keys = {
            Address.parse(f"http://{host}:8000").key
            for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
        }
        assert keys == {f"http://{socket.gethostname()}:8000"}
        assert Address.parse("http://node-3:8000").key == "http://node-3:8000"


class TestRequest:
    async def test_every_status_is_returned(self):
        """Each status is returned to the caller; none raises an exception."""
        with serving({"/a": {"x": [1]}, "/b": (500, "it\n failed")}) as server:
            client = Client(server.url + "/")
            reply = await client.request("GET", "/a")
            assert (reply.status, reply.ok, reply.json(), reply.same_host) == (200, True, {"x": [1]}, True)
            reply = await client.request("POST", "/b", json={"n": 1})
            assert (reply.status, reply.ok, reply.json(), reply.text) == (500, False, None, "it failed")
            assert server.asked[1].json == {"n": 1}
            assert (await client.request("GET", "/c")).status == 404
        assert client.host == socket.gethostname()

    async def test_a_path_in_the_address_stays(self):
        """A path in the address, such as the prefix of a proxy, is put before the path of each request."""
        with serving({"/llm/version": {}}) as server:
            assert (await Client(server.url + "/llm/").request("GET", "/version")).ok

    async def test_an_ipv6_address_in_brackets_works(self):
        """A request reaches a server whose IPv6 address is in brackets, as in a URL."""
        with serving({"/a": {}}, host="::1") as server:
            client = Client(server.url)
            assert (await client.request("GET", "/a")).ok
            assert client.same_host

    async def test_the_event_loop_is_not_held(self):
        """A slow server does not keep other coroutines from running."""
        with serving({"/a": lambda _: time.sleep(1.5) or {}}) as server:
            waiting = asyncio.ensure_future(Client(server.url).request("GET", "/a"))
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            assert time.perf_counter() - began < 1.0
            assert (await waiting).ok


class TestKeys:
    async def test_a_key_is_sent_as_a_bearer(self):
        """GET requests send the key as a bearer token. POST requests, which change the server, send the
        admin key.
        """
        with serving({"/a": {}}) as server:
            client = Client(server.url, " key\n", "admin")
            await client.request("GET", "/a")
            await client.request("POST", "/a")
            await Client(server.url).request("GET", "/a")
            assert [asked.headers.get("authorization") for asked in server.asked] == [
                "Bearer key",
                "Bearer admin",
                None,
            ]

    async def test_name_and_password_in_the_address(self):
        """A name and password in the address are sent as HTTP basic authentication."""
        with serving({"/a": {}}) as server:
            await Client(server.url.replace("//", "//me:p%40ss@")).request("GET", "/a")
            assert server.asked[0].headers["authorization"] == "Basic bWU6cEBzcw=="

    async def test_a_missing_and_a_wrong_key(self):
        """The failure says whether a key is missing or wrong, and which option to write. It does not show
        the key.
        """
        with serving({"/a": (401, {"error": "Unauthorized"})}) as server:
            for key, words in ((None, "requires a key"), ("s3cret", "requires another key")):
                client = Client(server.url, key)
                failure = client.failure(await client.request("GET", "/a"), "GET /a")
                assert words in str(failure)
                assert "api_key=" in str(failure)
                assert "s3cret" not in str(failure)
                assert failure.health == "unconfigured"

    async def test_keys_repeated_by_a_server_are_masked(self):
        """If a server repeats the key and the password in its answer, the reply and the failure do not
        show them.
        """
        with serving({"/a": (500, "no such key: s3cret, pa55")}) as server:
            client = Client(server.url.replace("//", "//me:pa55@"), "s3cret")
            reply = await client.request("GET", "/a")
            shown = f"{client.failure(reply, 'GET /a')} {reply!r} {client!r}"
            assert "s3cret" not in reply.text
            assert "no such key" in shown
            assert "pa55" not in reply.text

    @pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel", 7])
    def test_keys_that_fit_no_header_are_refused(self, key):
        """A key that cannot be sent in a header raises ConfigError, which does not show the key."""
        with pytest.raises(ConfigError, match="api_key") as refused:
            Client("http://node", key)
        assert "schl" not in str(refused.value)

    async def test_a_redirect_is_not_followed(self):
        """A redirect is a failure, and no request reaches the other server. The message has the target of
        the redirect without its secrets.
        """
        with (
            serving({"/a": {}}) as other,
            serving(
                {"/a": (307, "", {"Location": f"{other.url.replace('//', '//u:pw@')}/a?t=s3"})}
            ) as server,
        ):
            client = Client(server.url, "key")
            for method in ("GET", "POST"):
                with pytest.raises(EngineFailure, match="redirect to") as failure:
                    await client.request(method, "/a")
                assert f"{other.url}/a" in str(failure.value)
                assert "s3" not in str(failure.value)
                assert "pw@" not in str(failure.value)
                assert (failure.value.health, failure.value.owes_stop) == ("unreachable", False)
            assert not other.asked


class TestFailures:
    async def failed(self, client, method="POST", path="/start_profile", timeout=5.0):
        with pytest.raises(EngineFailure) as failure:
            await client.request(method, path, timeout=timeout)
        assert "s3cret" not in "".join(traceback.format_exception(failure.value))
        return failure.value

    async def test_a_refused_connection_leaves_no_stop_pending(self):
        """If the connection is refused, no request was sent, so no stop is pending."""
        error = await self.failed(Client(f"http://127.0.0.1:{free_port()}", "s3cret"))
        assert (error.health, error.owes_stop) == ("unreachable", False)
        assert "is the server up?" in str(error)

    async def test_a_host_that_does_not_answer(self):
        """If there is no connection within the timeout, no request was sent, so no stop is pending."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(0)
            address = sock.getsockname()
            waiting = []
            for _ in range(4):  # fill the queue, so that a later connection has no place in it
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(address)
            error = await self.failed(Client(f"http://127.0.0.1:{address[1]}"), timeout=0.2)
            for each in waiting:
                each.close()
        assert (error.health, error.owes_stop) == ("unreachable", False)
        assert "no connection within 0.2 s" in str(error)

    @pytest.mark.parametrize("host", ["a" * 70, "no.such.host.invalid"])
    async def test_an_unknown_name(self, host):
        """If the host's name is unknown, the failure names the host and no stop is pending."""
        error = await self.failed(Client(f"http://{host}:8000"))
        assert (error.health, error.owes_stop) == ("unreachable", False)
        assert host in str(error)

    @pytest.mark.parametrize(
        ("method", "health", "owes"), [("POST", "unknown", True), ("GET", "unreachable", False)]
    )
    async def test_no_answer_to_a_request(self, method, health, owes):
        """A start without an answer may have begun, so a stop must follow. A GET request needs no stop."""
        done = threading.Event()
        with serving({"/start_profile": lambda _: done.wait(5) and {}}) as server:
            error = await self.failed(Client(server.url, "s3cret"), method, timeout=0.2)
            done.set()
        assert (error.health, error.owes_stop) == (health, owes)
        assert f"did not answer {method} /start_profile within 0.2 s" in str(error)

    @pytest.mark.parametrize(
        "sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"SSH-2.0-OpenSSH\r\n"]
    )
    async def test_an_answer_that_breaks_off(self, sent):
        """If the server's answer breaks off or is not HTTP, the start may have begun, so a stop must
        follow.
        """

        def answer(handler):
            handler.wfile.write(sent)
            handler.close_connection = True

        with serving({"/start_profile": answer}) as server:
            error = await self.failed(Client(server.url, "s3cret"))
        assert (error.health, error.owes_stop) == ("unknown", True)
        assert "broke off" in str(error)

    async def test_an_answer_that_trickles(self):
        """The timeout is for the whole answer, not for each byte of it."""
        done = threading.Event()

        def answer(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            while not done.wait(0.05):
                handler.wfile.write(b"x")

        with serving({"/start_profile": answer}) as server:
            began = time.perf_counter()
            error = await self.failed(Client(server.url), timeout=0.3)
            assert time.perf_counter() - began < 4
            done.set()
        assert "did not answer" in str(error)

    async def test_an_answer_without_a_length(self):
        """An answer without a length ends with the connection, and is complete."""

        def answer(handler):
            handler.wfile.write(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}')
            handler.close_connection = True

        with serving({"/a": answer}) as server:
            assert (await Client(server.url).request("GET", "/a")).json() == {"a": 1}

    async def test_an_answer_without_end(self, monkeypatch):
        """An answer that is larger than the limit is a failure."""
        monkeypatch.setattr("stepprof.remote.http.reply.MOST_BYTES", 100_000)
        with serving({"/start_profile": "x" * 1_000_000}) as server:
            error = await self.failed(Client(server.url))
        assert "more than 100000 bytes" in str(error)

    async def test_requests_at_once_have_their_own_connections(self):
        """Fifty concurrent requests of one client are all answered."""
        with serving({"/a": lambda _: time.sleep(0.05) or {}}) as server:
            client = Client(server.url)
            replies = await asyncio.gather(*(client.request("GET", "/a") for _ in range(50)))
        assert all(reply.ok for reply in replies)

    async def test_concurrent_requests_are_limited(self, monkeypatch):
        """Of 30 requests at most 5 run at a time, so many servers do not need as many threads. All are
        answered.
        """
        monkeypatch.setattr("stepprof.remote.http.client.AT_ONCE", 5)
        there, most, counting = [], [], threading.Lock()

        def answer(_):
            with counting:
                there.append(1)
                most.append(len(there))
            time.sleep(0.02)
            with counting:
                there.pop()
            return {}

        with serving({"/a": answer}) as server:
            client = Client(server.url)
            replies = await asyncio.gather(*(client.request("GET", "/a") for _ in range(30)))
        assert all(reply.ok for reply in replies)
        assert 1 < max(most) <= 5


def endless(first, again, pause=0.02):
    """Return an answer that continues until the client closes the connection."""

    def answer(handler):
        handler.connection.settimeout(10)
        handler.close_connection = True
        try:
            handler.wfile.write(first)
            while True:
                handler.wfile.write(again)
                time.sleep(pause)
        except OSError:
            return

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def calls():
    """Return the threads of running requests; other tests may have left some."""
    return {thread for thread in threading.enumerate() if thread.name == "stepprof-call"}


class TestDeadline:
    """One timeout covers the whole request, whatever the server sends. Afterwards its thread and its place
    among the concurrent requests are free.
    """

    @pytest.fixture(autouse=True)
    def one_at_a_time(self, monkeypatch):
        monkeypatch.setattr("stepprof.remote.http.client.AT_ONCE", 1)

    @pytest.mark.parametrize(
        "answer",
        [
            endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            endless(b"", b"H", 0.1),
            endless(OK, b"X-A: b\r\n", 0.1),
            endless(OK + b"X-", b"a", 0.1),
            endless(CHUNKED, b"1\r\nx\r\n", 0.1),
            endless(CHUNKED, b"0", 0.1),
            endless(CHUNKED + b"1;", b"x", 0.1),
            endless(CHUNKED + b"0\r\n", b"X-A: b\r\n", 0.1),
            endless(OK + b"\r\n", b" ", 0.1),
        ],
        ids=["interim", "status", "headers", "header", "chunks", "size", "extension", "trailers", "body"],
    )
    async def test_an_answer_that_never_ends(self, answer):
        """The request ends after its timeout, and so does its thread. The next request is sent."""
        others = calls()
        with serving({"/start_profile": answer, "/a": {}}) as server:
            client, began = Client(server.url), time.perf_counter()
            with pytest.raises(
                EngineFailure, match=r"did not answer POST /start_profile within 0\.5 s"
            ) as failure:
                await client.request("POST", "/start_profile", timeout=0.5)
            assert time.perf_counter() - began < 10
            assert (failure.value.health, failure.value.owes_stop) == ("unknown", True)
            assert (await client.request("GET", "/a")).ok
        for thread in calls() - others:  # the thread of the last request may still be about to end
            thread.join(5)
        assert calls() <= others

    @pytest.mark.parametrize(
        "answer",
        [
            endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0),
            endless(OK, b"X-A: b\r\n" * 100, 0),
            endless(OK + b"X-", b"a" * 1000, 0),
            endless(CHUNKED + b"0\r\n", b"X-A: b\r\n" * 1000, 0),
            endless(OK + b"\r\n", b" " * 10_000, 0),
        ],
        ids=["interim", "headers", "header", "trailers", "body"],
    )
    async def test_an_answer_without_bounds(self, answer):
        """A fast answer that never ends is limited by its size."""
        with serving({"/start_profile": answer}) as server:
            began = time.perf_counter()
            with pytest.raises(EngineFailure, match="broke off while it answered"):
                await Client(server.url).request("POST", "/start_profile", timeout=60)
            assert time.perf_counter() - began < 30

    async def test_a_name_that_is_not_looked_up(self, mocker):
        """If name resolution hangs, only one lookup runs, and each request ends at its timeout. No stop is
        pending.
        """
        asked, done, real = [], threading.Event(), socket.getaddrinfo

        def hangs(host, *args, flags=0, **kwargs):
            if flags & socket.AI_NUMERICHOST:
                return real(host, *args, flags=flags, **kwargs)
            asked.append(host)
            done.wait(20)
            return real("127.0.0.1", *args, flags=flags, **kwargs)

        mocker.patch.object(socket, "getaddrinfo", side_effect=hangs)
        with serving({"/a": {}}) as server:
            client = Client(f"http://node-3:{server.port}")
            for _ in range(3):
                with pytest.raises(
                    EngineFailure, match=r'"node-3" was not looked up within 0\.2 s'
                ) as failure:
                    await client.request("POST", "/a", timeout=0.2)
                assert (failure.value.health, failure.value.owes_stop) == ("unreachable", False)
            assert asked == ["node-3"]
            done.set()
            assert (await client.request("GET", "/a")).ok

    async def test_a_handshake_that_never_ends(self):
        """The timeout covers the TLS handshake. No request was sent, so no stop is pending."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with pytest.raises(EngineFailure, match=r"no connection within 0\.3 s") as failure:
                await Client(f"https://127.0.0.1:{port}").request("POST", "/a", timeout=0.3)
        assert (failure.value.health, failure.value.owes_stop) == ("unreachable", False)

    @pytest.mark.parametrize("length", ["9" * 5000, "-" + "9" * 5000, "\uff19", "1e3", "0x10"])
    async def test_an_invalid_content_length(self, length):
        """An invalid Content-Length raises at most EngineFailure, for a body that is too short. Otherwise
        the body ends with the connection.
        """

        def answer(handler):
            handler.wfile.write(OK + f"Content-Length: {length}\r\n\r\n{{}}".encode())
            handler.close_connection = True

        with serving({"/a": answer}) as server:
            try:
                reply = await Client(server.url).request("GET", "/a")
            except EngineFailure as failure:
                assert "IncompleteRead" in str(failure)  # noqa: PT017
            else:
                assert reply.json() == {}


KEY = "sk-canary/7f3a+"


class TestKeysInAnswers:
    """A key that a server repeats anywhere in its answer, in any encoding, is never shown."""

    def raw(self, data):
        def answer(handler):
            handler.wfile.write(data)
            handler.close_connection = True

        return answer

    @pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints", "199 Else"])
    async def test_an_interim_answer(self, status):
        """Interim answers, with their headers, are skipped, and the final one counts."""
        interim = f"HTTP/1.1 {status}\r\nLink: </style.css>\r\n\r\n".encode()
        final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        with serving({"/a": self.raw(interim * 2 + final)}) as server:
            reply = await Client(server.url).request("GET", "/a")
        assert (reply.status, reply.body, "link" in reply.headers) == (200, b"{}", False)

    async def said(self, client, answer):
        with serving({"/a": answer}) as server:
            client = client(server.url)
            try:
                text = client.failure(await client.request("GET", "/a"), "GET /a")
            except EngineFailure as failure:
                text = failure
            return "".join(traceback.format_exception(text))

    @pytest.mark.parametrize(
        "form", [KEY, quote(KEY, safe=""), base64.b64encode(b"me:" + KEY.encode()).decode()]
    )
    async def test_keys_are_masked_anywhere_in_an_answer(self, form):
        """A key is masked in the status line, headers, redirects, chunk sizes and body, also where the
        body is cut.
        """
        line = form.encode()
        answers = [
            self.raw(b"HTTP/9 " + line + b"\r\n\r\n"),
            self.raw(line * 100 + b"\r\n\r\n"),
            self.raw(b"HTTP/1.1 " + line + b" OK\r\n\r\n"),
            self.raw(OK + line + b"\r\n\r\n"),
            self.raw(CHUNKED + line + b"\r\n"),
            (307, "", {"Location": f"http://other/{form}/x?key={form}#{form}"}),
            (307, "", {"Location": f"/{form}"}),
            (307, "", {"Location": f"//{form}@host:99/{form}"}),
            (500, f"no such key: {form}"),
            *((500, " " * 5000 + "x" * (300 - cut) + form) for cut in range(1, 20)),
        ]
        for answer in answers:
            for make in (
                lambda url: Client(url, KEY),
                lambda url: Client(url.replace("//", f"//me:{quote(KEY, safe='')}@")),
            ):
                text = await self.said(make, answer)
                assert "canary" not in text
                assert base64.b64encode(b"me:sk-canary").decode()[:10] not in text
                assert "7f3a" not in text

    async def test_escape_sequences(self):
        """Neither a body nor a status line can move the cursor of a terminal or begin a new line of the
        log.
        """
        for answer in (self.raw(b"HTTP/9 \x1b[2J\x07\r\n\r\n"), (500, "a\x1b[2J\x9b\nWARNING forged")):
            text = str(await self.said(Client, answer)).splitlines()[-1]
            assert text.isprintable()
            assert "\\x1b[2J" in text


class TestTls:
    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        return context

    async def test_a_trusted_certificate(self):
        """`ca_file` makes the client trust a certificate that the system does not know."""
        with serving({"/a": {}}, tls=self.context()) as server:
            client = Client(server.url, ca_file=str(CERTIFICATE))
            assert (await client.request("GET", "/a")).ok
            assert client.name == server.url

    async def test_an_untrusted_certificate(self):
        """The message says how to trust the certificate, and no key was sent."""
        with serving({"/a": {}}, tls=self.context()) as server:
            with pytest.raises(EngineFailure, match="ca_file=") as failure:
                await Client(server.url, "key").request("POST", "/a")
            assert not server.asked
        assert (failure.value.health, failure.value.owes_stop) == ("unreachable", False)

    async def test_a_server_without_tls(self):
        """If the server has no TLS, the message suggests `http://`."""
        with serving({}) as server, pytest.raises(EngineFailure, match="did you mean http://"):
            await Client(server.url.replace("http:", "https:")).request("GET", "/a")

    async def test_an_invalid_ca_file(self, tmp_path):
        """The error names a `ca_file` that does not exist."""
        with pytest.raises(EngineFailure, match="nowhere"):
            await Client("https://127.0.0.1:1", ca_file=str(tmp_path / "nowhere.pem")).request("GET", "/a")
