"""One request to a server: what is known when it fails, and what is never shown."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import traceback
from pathlib import Path

import pytest
from serving import serving

from stepprof.errors import ConfigError
from stepprof.remote.address import Address
from stepprof.remote.base import EngineFailure
from stepprof.remote.httpclient import Client

CERTIFICATE = Path(__file__).parent / "data" / "localhost.pem"


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
    def test_one_name_without_secrets(self, url, name):
        """However it is written, a server has one name, and no password in it."""
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
    def test_what_is_none(self, url):
        """What cannot be an address is refused when it is attached."""
        with pytest.raises(ConfigError):
            Address.parse(url)

    def test_a_key_in_the_query_is_not_shown(self):
        """A secret that was put behind a question mark is refused, and not repeated."""
        with pytest.raises(ConfigError, match="api_key") as refused:
            Address.parse("http://me:pass@node:8000/?key=s3cret")
        assert "s3cret" not in str(refused.value)
        assert "pass" not in str(refused.value)

    def test_localhost_is_a_server_of_this_host(self):
        """The same words on two hosts are two servers, and several words on one host are one."""
        keys = {
            Address.parse(f"http://{host}:8000").key
            for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
        }
        assert keys == {f"http://{socket.gethostname()}:8000"}
        assert Address.parse("http://node-3:8000").key == "http://node-3:8000"


class TestRequest:
    async def test_an_answer_is_an_answer_whatever_it_says(self):
        """Statuses are for the one who asked to judge."""
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
        """A server behind a proxy's prefix is spoken to there."""
        with serving({"/llm/version": {}}) as server:
            assert (await Client(server.url + "/llm/").request("GET", "/version")).ok

    async def test_ipv6(self):
        """An address in brackets."""
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
        """The key goes with every request, the admin's in its place with what changes the server."""
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
        """They are sent as HTTP has it."""
        with serving({"/a": {}}) as server:
            await Client(server.url.replace("//", "//me:p%40ss@")).request("GET", "/a")
            assert server.asked[0].headers["authorization"] == "Basic bWU6cEBzcw=="

    async def test_a_missing_and_a_wrong_key(self):
        """The failure says what to write."""
        with serving({"/a": (401, {"error": "Unauthorized"})}) as server:
            for key, words in ((None, "wants a key"), ("s3cret", "wants another key")):
                client = Client(server.url, key)
                failure = client.failure(await client.request("GET", "/a"), "GET /a")
                assert words in str(failure)
                assert "api_key=" in str(failure)
                assert "s3cret" not in str(failure)
                assert failure.health == "unconfigured"

    async def test_what_a_server_repeats_is_not_shown(self):
        """A server that quotes the key it was given does not bring it into a log."""
        with serving({"/a": (500, "no such key: s3cret, pa55")}) as server:
            client = Client(server.url.replace("//", "//me:pa55@"), "s3cret")
            reply = await client.request("GET", "/a")
            shown = f"{client.failure(reply, 'GET /a')} {reply!r} {client!r}"
            assert "s3cret" not in reply.text
            assert "no such key" in shown
            assert "pa55" not in reply.text

    @pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel", 7])
    def test_what_no_header_can_carry(self, key):
        """Refused at attach, and not shown."""
        with pytest.raises(ConfigError, match="api_key") as refused:
            Client("http://node", key)
        assert "schl" not in str(refused.value)

    async def test_a_redirect_is_not_followed(self):
        """No key goes to another server; the message says where the redirect points to, without what is secret there."""
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

    async def test_nothing_listens(self):
        """The server is down: nothing was sent, so nothing is owed."""
        error = await self.failed(Client(f"http://127.0.0.1:{free_port()}", "s3cret"))
        assert (error.health, error.owes_stop) == ("unreachable", False)
        assert "is the server up?" in str(error)

    async def test_a_host_that_does_not_answer(self):
        """No connection within the time-out: nothing was sent."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(0)
            address = sock.getsockname()
            waiting = []
            for _ in range(4):  # whoever comes after these finds no place in the queue
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
        """A wrong host name is said."""
        error = await self.failed(Client(f"http://{host}:8000"))
        assert (error.health, error.owes_stop) == ("unreachable", False)
        assert host in str(error)

    @pytest.mark.parametrize(
        ("method", "health", "owes"), [("POST", "unknown", True), ("GET", "unreachable", False)]
    )
    async def test_an_answer_that_does_not_come(self, method, health, owes):
        """A start that was sent and not answered may have begun: a stop is owed. A question leaves nothing behind."""
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
        """A server killed in the middle, or that speaks something else."""

        def answer(handler):
            handler.wfile.write(sent)
            handler.close_connection = True

        with serving({"/start_profile": answer}) as server:
            error = await self.failed(Client(server.url, "s3cret"))
        assert (error.health, error.owes_stop) == ("unknown", True)
        assert "broke off" in str(error)

    async def test_an_answer_that_trickles(self):
        """The time-out is for the whole answer, not for each byte of it."""
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
        """What ends with the connection is whole."""

        def answer(handler):
            handler.wfile.write(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}')
            handler.close_connection = True

        with serving({"/a": answer}) as server:
            assert (await Client(server.url).request("GET", "/a")).json() == {"a": 1}

    async def test_an_answer_without_end(self, monkeypatch):
        """No server fills our memory."""
        monkeypatch.setattr("stepprof.remote.httpclient._MOST_BYTES", 100_000)
        with serving({"/start_profile": "x" * 1_000_000}) as server:
            error = await self.failed(Client(server.url))
        assert "more than 100000 bytes" in str(error)

    async def test_many_at_once(self):
        """Each has a connection and a thread of its own."""
        with serving({"/a": lambda _: time.sleep(0.05) or {}}) as server:
            client = Client(server.url)
            replies = await asyncio.gather(*(client.request("GET", "/a") for _ in range(50)))
        assert all(reply.ok for reply in replies)

    async def test_no_more_than_so_many_at_once(self, monkeypatch):
        """A thousand servers are not a thousand threads and sockets; all are asked."""
        monkeypatch.setattr("stepprof.remote.httpclient.AT_ONCE", 5)
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


class TestTls:
    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        return context

    async def test_a_trusted_certificate(self):
        """Named by ca_file, where the system does not know it."""
        with serving({"/a": {}}, tls=self.context()) as server:
            client = Client(server.url, ca_file=str(CERTIFICATE))
            assert (await client.request("GET", "/a")).ok
            assert client.name == server.url

    async def test_one_that_is_not_trusted(self):
        """The message says how to trust it; no key was sent."""
        with serving({"/a": {}}, tls=self.context()) as server:
            with pytest.raises(EngineFailure, match="ca_file=") as failure:
                await Client(server.url, "key").request("POST", "/a")
            assert not server.asked
        assert (failure.value.health, failure.value.owes_stop) == ("unreachable", False)

    async def test_a_server_without_tls(self):
        """The message asks whether http was meant."""
        with serving({}) as server, pytest.raises(EngineFailure, match="did you mean http://"):
            await Client(server.url.replace("http:", "https:")).request("GET", "/a")

    async def test_a_file_that_is_none(self, tmp_path):
        """A wrong ca_file is named."""
        with pytest.raises(EngineFailure, match="nowhere"):
            await Client("https://127.0.0.1:1", ca_file=str(tmp_path / "nowhere.pem")).request("GET", "/a")
