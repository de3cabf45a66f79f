"""JSON from any source is parsed into values that can be printed, compared and written again."""

from __future__ import annotations

import json
import sys

import pytest

from stepprof.host.plain_json import DEPTH, parse_json, whole_pairs

TEXTS = [
    (b'{"a": [1, -2.5, true, null, "x"]}', {"a": [1, -2.5, True, None, "x"]}),
    (b"[NaN, Infinity, -Infinity, 1e999, -1e999]", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]),
    (b"9999999999999999999", 9_999_999_999_999_999_999),
    (b"-9999999999999999999", -9_999_999_999_999_999_999),
    (b"99999999999999999999", "99999999999999999999"),
    (b"[" + b"1" * 5000 + b"]", ["1" * 5000]),
    (rb'"\ud800 \ud83d\ude00 \udc00 \\ud800"', "\ufffd \U0001f600 \ufffd \\ud800"),
    (rb'{"\ud800": 1}', {"\ufffd": 1}),
    (rb'"\ud800\ud83d\ude00"', "\ufffd\U0001f600"),
    (b"[" * DEPTH + b"]" * DEPTH, None),
]
REFUSED = [b"", b"{", b"[1,]", b'"\xff"', b"nan", b"\x00", b"[" * 65 + b"]" * 65, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 10**6]  # fmt: skip


@pytest.fixture(params=["msgspec", "base"])
def decoder(request, monkeypatch):
    """Parse with msgspec, and without it."""
    if request.param == "base":
        monkeypatch.delitem(sys.modules, "msgspec.json")
    else:
        import msgspec.json  # noqa: F401


@pytest.mark.usefixtures("decoder")
class TestParse:
    @pytest.mark.parametrize(("text", "value"), TEXTS)
    def test_valid_json_is_parsed(self, text, value):
        """With and without msgspec, valid JSON has the same value, which can be written as JSON again."""
        found = parse_json(text)
        assert found == value or value is None
        assert json.dumps(found, allow_nan=False).encode().decode()
        assert parse_json(json.dumps(found).encode()) == found

    @pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
    def test_invalid_or_deep_json_is_refused(self, text):
        """Invalid JSON, or JSON that is nested too deep, raises a ValueError."""
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)


def test_text_without_half_pairs_is_unchanged():
    """Text without unpaired surrogates is unchanged, byte for byte."""
    text = json.dumps({"a": "\U0001f600\\u\n", "b": "\\\\ud800"}).encode()
    assert whole_pairs(text) == text
