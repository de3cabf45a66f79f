"""Secrets that are recognised by their name, their place or their form."""

from __future__ import annotations

import pytest

from stepprof.redaction.secret_places import is_secret, without_keys, without_secrets


class TestIsSecret:
    @pytest.mark.parametrize(
        "name", ["--pass", "DB_PASS", "sig", "apiKey", "x-api-key", "Cookie", "dsn", "webhook", "jwt", "pwd"]
    )
    def test_names_of_secrets(self, name):
        """A value is a secret by the name of its option, variable or header."""
        assert is_secret(name, "abc")

    @pytest.mark.parametrize(
        "name",
        [
            *("passes", "bypass", "signal", "design", "max_tokens", "monkey", "n_pass"),
            *("SSH_AUTH_SOCK", "--key-file", "secrets.dir"),
        ],
    )
    def test_names_of_other_things(self, name):
        """Names that only contain such a word, numbers, and names of files are no secrets."""
        assert not is_secret(name, "3")


class TestWithout:
    def test_places_and_forms(self):
        """Places of secrets are masked whatever their form, and keys of services wherever they are."""
        assert without_secrets("token=abc of sk-0123456789abcdef0") == "token=… of sk-0123456789abcdef0"
        assert without_keys("token=abc of sk-0123456789abcdef0") == "token=abc of …"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a Bearer abcdefgh1 b", "a Bearer … b"),
            ("b'authorization', b'bearer abcdefgh1'", "b'authorization', b'bearer …'"),
            ("Bearer authentication failed", "Bearer authentication failed"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
                "-----BEGIN RSA PRIVATE KEY-----…-----END RSA PRIVATE KEY-----",
            ),
            ("SharedAccessKey=abc;", "SharedAccessKey=…;"),
            ("secret = 'abc' if token == other", "secret = '…' if token == other"),
        ],
    )
    def test_what_follows(self, text, shown):
        """What follows "Bearer", the begin of a private key, or the name of a secret is masked."""
        assert without_secrets(text) == shown
        assert without_secrets(shown) == shown

    def test_is_stable(self):
        """A masked text is unchanged when it is masked again."""
        text = without_secrets('{"password": "a b"} ?sig=x Cookie: a=b; c=d')
        assert without_secrets(text) == text
