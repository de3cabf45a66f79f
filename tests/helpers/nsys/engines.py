"""Stand in for vLLM where it cannot run: an engine object and a server. At a start or stop, a child
process makes the call that vLLM's workers make under nsys.
"""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

CALL = "import ctypes; call = getattr(ctypes.CDLL(None), {!r}, None); call and call()"


def worker_calls(name):
    """Let a child of this process call a function of libcudart, if nsys has loaded one."""
    subprocess.run([sys.executable, "-SE", "-c", CALL.format(name)], check=True)


def engine():
    """Return an engine object with the type name of vLLM's, whose worker is a child process."""

    def start_profile(self, **given):
        self.calls.append("start")
        worker_calls("cudaProfilerStart")

    def stop_profile(self):
        self.calls.append("stop")
        worker_calls("cudaProfilerStop")

    members = {"__module__": "vllm.llm", "start_profile": start_profile, "stop_profile": stop_profile}
    made = type("LLM", (), members)()
    made.calls = []
    profiler = SimpleNamespace(profiler="cuda", torch_profiler_dir="")
    made.vllm_config = SimpleNamespace(profiler_config=profiler)
    return made


class Handler(BaseHTTPRequestHandler):
    """The answers of a vLLM server that was started for nsys."""

    def do_GET(self):
        answers = {"/start_profile": 405, "/health": 200, "/version": 200}
        self.answer(answers.get(self.path, 404), {"version": "0.32.0"})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        verb = self.path.strip("/").partition("_")[0].capitalize()
        worker_calls(f"cudaProfiler{verb}")
        self.answer(200, {})

    def answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
