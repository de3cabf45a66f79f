"""The command line of a job without its secrets."""

from __future__ import annotations

import pytest

from stepprof.host.command_line import command_line
from stepprof.redaction import MASK

SECRET = "Zq7-w0rd.that/nobody=knows"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--hf-token", SECRET],
        ["--hf_token", SECRET],
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        [f"-api_key={SECRET}"],
        [f"wandb.api_key={SECRET}"],
        [f"+trainer.logger.API_KEY={SECRET}"],
        [f"++s3.secret_access_key={SECRET}"],
        ["--db-password", SECRET],
        [f"password={SECRET} and more"],
        [f"WANDB_API_KEY={SECRET}"],
        [f"https://user:{SECRET.replace('/', '')}@host/path"],
        ["-H", "Authorization: Bearer 12345abcdeSECRET"],
        ["--header", "X-Api-Key: 12345abcdeSECRET"],
        ['{"api_key": "12345abcdeSECRET", "n": 4}'],
        ["--extra=token:12345abcdeSECRET"],
        ["hf_12345abcdeSECRETSECRET"],
        ["--key-file-content=sk-12345abcdeSECRETSECRET"],
        ["0123456789abcdef0123456789abcdef01234567"],
        ["--init", "a value of the environment"],
    ],
)
def test_a_secret_is_not_shown(arguments) -> None:
    """A secret is recognised by the name of its option or key, by its form, or by the environment variable
    that holds it.
    """
    environ = {"MY_API_KEY": "a value of the environment", "HOME": "train.py"}
    shown = command_line(["python", "train.py", *arguments, "--epochs=3"], environ)
    text = " ".join(shown)
    assert MASK in text
    for secret in (SECRET, SECRET.replace("/", ""), "12345abcde", "0123456789abcdef", "a value of"):
        assert secret not in text
    assert shown[:2] == ["python", "train.py"]


def test_harmless_values_are_shown() -> None:
    """Numbers of tokens, names, paths and learning rates are shown."""
    arguments = [
        "python", "-m", "verl.trainer.main_ppo", "data.train_batch_size=256", "actor.ppo_max_token_len_per_gpu=16384",
        "--max-tokens", "512", "--tokenizer", "Qwen/Qwen3-8B", "model.path=/models/Qwen3-8B", "trainer.monkey=long",
        "token_level=true", "lr=1e-6", "--deepspeed", "ds_zero3.json",
    ]  # fmt: skip
    assert command_line(arguments, {"PATH": "/usr/bin"}) == arguments


def test_pwd_is_not_a_password() -> None:
    """`PWD` contains a folder, which is not masked as a password."""
    assert (
        command_line(["python", "/home/me/train.py"], {"PWD": "/home/me", "OLDPWD": "/home/me"})[1]
        == "/home/me/train.py"
    )


def test_code_is_left_out() -> None:
    """The code after `python -c` is masked. The argument of a script's option `-c` is shown."""
    assert command_line(["python", "-X", "dev", "-c", "login('me')", "a"], {}) == [
        "python",
        "-X",
        "dev",
        "-c",
        MASK,
    ]
    assert command_line(["python", "train.py", "-c", "a.yaml"], {}) == ["python", "train.py", "-c", "a.yaml"]


def test_the_command_line_is_bounded() -> None:
    """The command line is limited in length, and its control characters are removed."""
    shown = command_line(["python", "x" * 10_000, "a\x1b[2Jb\n", *["--n=1"] * 10_000], {})
    assert len(shown) <= 301
    assert sum(map(len, shown)) < 10_000
    assert shown[-1] == MASK
    assert all(each.isprintable() for each in shown)
