"""Children that are forked inside a recorded step."""

from __future__ import annotations

import gzip
import json

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


FORKED = """
    import json, os, sys
    import torch, stepprof
    torch.set_num_threads(1)

    def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

    def grown():
        tensor, before = torch.ones(4), resident()
        for _ in range(30_000): tensor.add_(1)
        return resident() - before

    def in_child(act):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps(act()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return json.loads(os.read(reader, 1000))

    stepprof.init({"steps": "2", "output_dir": "out", "backend": "torch", "torch": json.loads(sys.argv[1])})
    for step in (1, 2):
        with stepprof.profile_step(step):
            torch.ones(8) + 1
            print(json.dumps(in_child(grown)), flush=True)
            torch.ones(8) @ torch.ones(8)
    stepprof.shutdown()
"""


class TestForkedChildren:
    @pytest.mark.parametrize(
        "options",
        [{}, {"with_stack": True}, {"profile_memory": True}, {"all_threads": False}],
        ids=["plain", "stacks", "memory", "one-thread"],
    )
    def test_a_child_of_a_recorded_step_records_nothing(self, run_script, tmp_path, options) -> None:
        """Its memory grows as that of a child that was forked outside; the parent goes on recording."""
        ran = run_script(FORKED, json.dumps(options), timeout=300).check()
        outside, inside = (float(line) for line in ran.stdout.splitlines()[:2])
        assert inside < outside + 8  # 30 MB more with the recorder on
        [trace] = tmp_path.glob("out/*/step-*/**/*.trace.json.gz")
        assert b'"aten::dot"' in gzip.decompress(trace.read_bytes())
