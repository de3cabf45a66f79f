"""Which times to the first token are accepted from SGLang, by its version and its counters."""

from __future__ import annotations

import pytest

from stepprof.remote.sglang.outcome import credible
from stepprof.remote.sglang.request import Facts

COUNTED = {"generated_tokens": 120, "first_tokens": 3, "first_token_seconds": 0.6, "token_gaps": 70}
STREAMED = {**COUNTED, "token_gaps": 117}
WITHOUT = {"generated_tokens": 120, "first_tokens": 3, "token_gaps": 70}


class TestCredible:
    @pytest.mark.parametrize("version", ["0.4.6", "0.5.12", "0.5.21", "0.5.21.post1"])
    def test_an_old_version_counts_the_time_to_its_first_output(self, version):
        """An old version counts the time to the first output. For requests that are not streamed, it is
        left out.
        """
        assert credible(COUNTED, Facts("e", version)) == WITHOUT

    @pytest.mark.parametrize("version", ["0.5.22", "0.5.23", "0.6.0", "of a fork"])
    def test_a_new_version_counts_the_first_token(self, version):
        assert credible(COUNTED, Facts("e", version)) == COUNTED

    def test_streamed_requests_are_counted_correctly_in_every_version(self):
        assert credible(STREAMED, Facts("e", "0.5.12")) == STREAMED
        assert credible(STREAMED, None) == STREAMED

    def test_missing_counters_are_left_out(self):
        counted = {"first_tokens": 3, "first_token_seconds": 0.6}
        assert credible(counted, Facts("e", "0.5.12")) == {"first_tokens": 3}
        assert credible(counted, None) == {"first_tokens": 3}

    def test_nothing_counted(self):
        assert credible(None, Facts("e", "0.5.12")) is None
