"""With which profilers and options a process was recorded, from its entries in the manifest."""

from __future__ import annotations

import pytest

from stepprof.analysis.report.profiler_options import options_of


def window(role="actor", backend="torch", **options):
    return {"role": role, "backend": backend, **options}


@pytest.mark.parametrize(
    ("windows", "stated"),
    [
        ([], None),
        ([window()], None),  # of an older version
        ([window(options={}), window("ref")], None),
        ([window(backend="null")], None),
        ([window(options={}), window("ref", options={})], ['backend = "torch"']),
        (
            [window(options={"torch": {"with_stack": True}}), window(None, options={})],
            ['actor: backend = "torch"', "actor: torch.with_stack = true", 'step: backend = "torch"'],
        ),
        (
            [window(options={"npu": {"lease_dir": "/a", "level": "level1"}})],
            ['backend = "torch"', 'npu.level = "level1"'],
        ),
        ([window(options={"torch": 3})], ['backend = "torch"']),  # any file is read
    ],
)
def test_options(windows, stated):
    """Each option is stated once, with its role if the roles differ. None: not known, or nothing was captured."""
    assert options_of(windows) == stated


def test_options_are_few_and_short():
    """A file of any content makes no long list."""
    options = {"torch": {f"key{n}": "x" * 5000 for n in range(500)}}
    found = options_of([window(options=options)])
    assert found is not None
    assert len(found) <= 32
    assert max(map(len, found)) <= 200
