"""A process that reads traces keeps freed memory for its next blocks."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from stepprof.analysis.timeline.malloc_tuning import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        blocks = [bytearray(600_000) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc keeps freed memory on request")
def test_freed_memory_is_kept():
    given_back, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True).stdout)
        for how in ("not", "keep")
    )
    assert given_back > 5_000
    assert kept < 100
