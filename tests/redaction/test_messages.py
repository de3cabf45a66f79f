"""Text from outside in a message: it has no secrets, no control characters, and a limited length."""

from __future__ import annotations

import ast
import base64
import html
import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepprof
from stepprof.log import logger
from stepprof.redaction import messages as redaction
from stepprof.redaction.messages import MOST, hide, masked, quoted, redacted
from stepprof.remote.base import EngineFailure
from stepprof.run.manifest_writer import describe_error

KEY = "sk-Canary/+= 7f3a\"b'9&c"
PACKAGE = Path(stepprof.__file__).parent


class TestMasked:
    @pytest.mark.parametrize(
        "form",
        [
            KEY,
            KEY.upper(),
            quote(KEY, safe=""),
            quote(KEY, safe="").lower(),
            quote(KEY),
            base64.b64encode(KEY.encode()).decode(),
            json.dumps(KEY),
            repr(KEY),
            KEY.replace("&", "&amp;"),
            html.escape(KEY),
            json.dumps(json.dumps(KEY)),
            json.dumps(KEY.replace("/", "\\/")),
            json.dumps(repr([repr(KEY)])),
            quote(quote(KEY, safe="")),
            quote(quote(KEY, safe=""), safe="").lower(),
            quote(base64.b64encode(KEY.encode()).decode(), safe=""),
            html.escape(html.escape(json.dumps(KEY))),
        ],
    )
    def test_every_form_of_a_secret(self, form):
        """A secret is masked as it is and encoded for URLs, Basic, JSON, Python and HTML,
        also if it is encoded twice.
        """
        hide(KEY)
        shown = masked(f"before {form} after")
        assert "7f3a" not in shown.lower()
        assert shown.startswith("before ")
        assert shown.endswith(" after")

    def test_a_short_key_is_masked_as_a_word(self):
        """A short key is masked as a whole word only. `EMPTY` is the key of servers without
        keys, and a part of other words.
        """
        hide("EMPTY", "k")
        assert masked("key EMPTY, k: backend empty NONEMPTY") == "key …, …: backend empty NONEMPTY"

    def test_a_color_inside_a_secret(self):
        """Color codes inside a secret are removed before the search for secrets."""
        hide("canary-0123")
        assert quoted("cana\x1b[0mry-0123") == "…"
        assert redacted("cana\x1b[1;31mry-0123") == "…"

    def test_short_secrets_do_not_mask_our_own_words(self):
        """A key may be `key`. It is masked in a server's text and stays in stepprof's own text."""
        hide("key")
        assert str(EngineFailure(f"it wants another key: {quoted('no key')}")) == "it wants another key: no …"

    def test_text_without_secrets_is_unchanged(self):
        """None and an empty string are no secrets."""
        hide(None, "")
        assert masked("a text") == "a text"

    def test_secrets_are_bounded(self):
        """The number of secrets in memory is limited, and the latest ones are masked."""
        hide(*(f"secret-{number}" for number in range(3000)))
        assert len(redaction._secrets) == redaction.MOST_SECRETS
        assert masked("secret-2999") == "…"


class TestQuoted:
    @given(st.text(max_size=400))
    def test_quoted_text_is_one_printable_line(self, text):
        """Any quoted text is one printable line of limited length."""
        shown = quoted(text, most=100)
        assert shown.isprintable()
        assert len(shown) <= 101

    @given(st.integers(0, 400), st.integers(1, 60))
    def test_a_secret_at_the_cut(self, before, most):
        """A secret is masked before the text is cut, so that no part of it remains."""
        hide("canary-0123456789")
        shown = quoted("x" * before + "canary-0123456789" * 2, most=most)
        assert not set(shown) - {"x", "…"}

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("two\r\nlines\t\x1b[31mred\x1b[0m\x1b[2J\x00", "two\\r\\nlines\\tred\\x1b[2J\\x00"),
            ("a\u202eb\u2028c\udc80", "a\\u202eb\\u2028c\\udc80"),
            ("http://me:pw@node/a?x=1&api_key=abc&y=2", "http://…@node/a?x=1&api_key=…&y=2"),
            ("Authorization: Basic bWU6cHc=, so", "Authorization: Basic …, so"),
            ("max_tokens=5, basic settings", "max_tokens=5, basic settings"),
            (
                "unknown key: steps; token: 3, keys=2, token=17",
                "unknown key: steps; token: 3, keys=2, token=17",
            ),
            ("GET /blob?sv=1&sig=abc%2B&se=2 failed", "GET /blob?sv=1&sig=…&se=2 failed"),
            ("refused token=abc-1, hf_token=abc; retry", "refused token=…, hf_token=…; retry"),
            ("x-api-key: two words\nnext: 1", "x-api-key: …\\nnext: 1"),
            ("Cookie: a=b; c=d\nnext: 1", "Cookie: …\\nnext: 1"),
            ('{"set-cookie": "a=b; c=d", "n": 1}', '{"set-cookie": "…", "n": 1}'),
            ('{"password": "two words", "n": 1}', '{"password": "…", "n": 1}'),
            ("{'api_token': 'two words', 'n': 1}", "{'api_token': '…', 'n': 1}"),
            (r'"{\"secret\": \"two words\", \"n\": 1}"', r'"{\"secret\": \"…\", \"n\": 1}"'),
            ("{'x-auth-token': 'two words'}", "{'x-auth-token': '…'}"),
        ],
    )
    def test_printable_text_is_shown(self, text, shown):
        """Control characters are escaped. Passwords in URLs, parameters and headers are masked,
        even if they are not registered.
        """
        assert quoted(text) == shown

    def test_an_exception_whose_text_fails(self):
        """If the text of an exception cannot be read, its type is shown."""

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError

        assert quoted(Odd()) == "Odd"

    @pytest.mark.parametrize(
        "unit",
        [
            "a",
            "://",
            "?key",
            "authorization ",
            "\x1b",
            "?" + "k" * 39,
            "\\",
            "/",
            "%25",
            "&amp;",
            '"token":"',
            "token=",
            "x-key",
            "cookie ",
        ],
    )
    def test_any_text_is_quoted_quickly(self, unit):
        """Quoting four million characters takes less than 2 s of CPU time."""
        hide(KEY, "/%&\\\\" + KEY)
        began = time.process_time()
        quoted(unit * (4_000_000 // len(unit)))
        assert time.process_time() - began < 2


class TestSinks:
    """The text in log lines, errors and manifests is masked, whatever its source."""

    def test_a_log_line(self, log):
        """The fields of a log line, and values in lists, are masked and each on one line."""
        hide(KEY)
        logger.warning("area.verb", reason=f"\n[forged] {KEY}", names=[KEY, 3], step=2)
        [line] = log
        assert line["reason"] == "\\n[forged] …"
        assert (line["names"], line["step"]) == (["…", 3], 2)

    def test_a_failure_of_an_engine(self):
        """The message of an EngineFailure is masked and cut when it is made."""
        hide(KEY)
        assert str(EngineFailure(f"it said\n{KEY}{'x' * 5000}")).startswith("it said\\n…xxx")
        assert len(str(EngineFailure("x" * 5000))) == MOST + 1

    def test_an_exception_in_a_manifest(self):
        """The description of any exception is masked."""
        hide(KEY)
        assert describe_error(OSError(f"no\n{KEY}")) == "OSError: no\\n…"

    def test_a_mapping(self):
        """The values of a mapping are masked, and the keys stay."""
        hide(KEY)
        assert redacted({"error": KEY, "bytes": 3, "more": [{"a": KEY}]}) == {
            "error": "…",
            "bytes": 3,
            "more": [{"a": "…"}],
        }

    def test_there_is_no_other_way_into_the_log(self):
        """Only `log/logger.py` uses logging or structlog. `ray_workers` uses logging to silence Ray."""
        found = {
            path.relative_to(PACKAGE).as_posix()
            for path in PACKAGE.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name.split(".")[0] in ("logging", "structlog")
        }
        assert found == {"log/logger.py", "analysis/timeline/ray_workers.py"}
