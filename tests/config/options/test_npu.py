"""The options of the npu backend: combinations that torch_npu would silently reset are refused."""

from __future__ import annotations

import pytest

from stepprof import Config, NpuOptions
from stepprof.errors import ConfigError

LEVEL1 = {"level": "level1"}


def test_the_defaults_are_cheap():
    options = NpuOptions()
    assert (options.on_host, options.on_device, options.ranges) == (True, True, True)
    assert options.level == "level0"
    assert not any(getattr(options, name) for name in ("with_stack", "record_shapes", "profile_memory", "with_modules", "with_flops", "analyse"))  # fmt: skip


def test_in_a_configuration():
    config = Config.from_mapping(
        {"backend": "npu", "npu": {"level": "level2", "aic_metrics": "l2_cache", "host_sys": ["cpu", "osrt"]}}
    )
    assert config.npu.host_sys == ("cpu", "osrt")


@pytest.mark.parametrize(
    ("options", "key", "meant"),
    [
        ({"activities": ["cpu", "cuda"]}, "activities", 'did you mean "npu"?'),
        ({"level": "level_1"}, "level", 'did you mean "level1"?'),
        ({**LEVEL1, "aic_metrics": "pipe_utilisation"}, "aic_metrics", 'did you mean "pipe_utilization"?'),
        ({"aic_metrics": "memory"}, "aic_metrics", 'did you mean level = "level1" with it?'),
        ({"level": "none", "aic_metrics": "memory"}, "aic_metrics", 'did you mean level = "level1" with it?'),
        ({"op_attr": True}, "op_attr", 'did you mean export_type = ["text", "db"] with it?'),
        ({"gc_detect_threshold": -1}, "gc_detect_threshold", "0 or more"),
        ({"gc_detect_threshold": True}, "gc_detect_threshold", "a number of milliseconds"),
        ({"activities": ["npu"], "gc_detect_threshold": 1}, "gc_detect_threshold", "needs the host"),
        ({"activities": ["cpu"], "level": "level1"}, "level", "needs the device"),
        ({"activities": ["cpu"], "sys_io": True}, "sys_io", "needs the device"),
        ({"activities": ["cpu"], "mstx": True}, "mstx", "needs the device"),
        ({"mstx": False, "level": "none"}, "level", "did you mean mstx = true?"),
        ({"mstx": False, "with_flops": True}, "with_flops", "did you mean mstx = true?"),
        ({"mstx": False, "mstx_domain_include": ["a"]}, "mstx_domain_include", "did you mean mstx = true?"),
        ({"mstx_domain_include": ["a"], "mstx_domain_exclude": ["b"]}, "mstx_domain_exclude", "remove one"),
        ({"host_sys": ["memory"]}, "host_sys", 'did you mean "mem"?'),
        ({"export_type": ["json"]}, "export_type", "one of: text, db"),
        ({"export_type": []}, "export_type", "at least one name"),
        ({"lease_wait_seconds": "soon"}, "lease_wait_seconds", "a number of seconds"),
        ({"with_stack": 1}, "with_stack", "did you mean true?"),
    ],
)
def test_invalid_combinations_are_refused(options, key, meant):
    with pytest.raises(ConfigError) as caught:
        NpuOptions(**options)
    assert caught.value.key == key
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"level": "none"},
        {"activities": ["cpu"], "gc_detect_threshold": 0},
        {"activities": ["cpu"], "mstx": False},
        {**LEVEL1, "aic_metrics": "memory_access", "l2_cache": True},
        {"op_attr": True, "export_type": ["db"]},
        {"mstx_domain_exclude": ["communication"]},
        {"mstx_domain_include": "mine"},
    ],
)
def test_valid_combinations_are_accepted(options):
    assert NpuOptions(**options)


class TestEngines:
    """CANN allows one recorder per device, and an engine takes no lease itself."""

    def test_both_at_once(self):
        config = Config(steps="2", backend="npu", roles={"rollout": {"engine": {"max_iterations": 8}}})
        (warning,) = config.warnings()
        assert warning.startswith('roles.rollout: backend = "npu" for this process and for the engine')

    @pytest.mark.parametrize(
        "rollout",
        [
            {"backend": "null", "engine": {"backend": "npu"}},
            {"engine": {"backend": "torch"}},
            {"steps": "none", "engine": {}},
            {"ranks": "0"},
        ],
    )
    def test_only_one_of_both_records(self, rollout):
        assert Config(steps="2", backend="npu", roles={"rollout": rollout}).warnings() == ()
