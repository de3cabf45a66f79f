"""The command line of a job without its secrets."""

from __future__ import annotations

import pytest

from stepprof.host.command_line import command_line
from stepprof.redaction.messages import MASK

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
        ["--pass", SECRET],
        [f"--pass={SECRET}"],
        ["--db-pass", SECRET],
        ["--cookie", f"session={SECRET}; theme=dark"],
        ["-H", f"Cookie: theme=dark; session={SECRET}"],
        ["-H", f"x-api-key: two words {SECRET}"],
        ["-H", f"Authorization: Digest user, response={SECRET}"],
        ["-u", f"me:{SECRET}"],
        [f"-ume:{SECRET}"],
        [f"--user=me:{SECRET}"],
        [f"curl -H 'Authorization: token {SECRET}'"],
        [f"--key=-----BEGIN PRIVATE KEY-----\n{SECRET}"],
        ["-----BEGIN OPENSSH PRIVATE KEY-----\n12345abcdeSECRET\n"],
        [f"--url=https://store/blob?sv=1&sig={SECRET}"],
        [f"https://store/blob?token={SECRET}"],
        [f"https://store/blob?jwt={SECRET}&n=1"],
        [f'{{"password": "three words {SECRET}", "n": 4}}'],
        [f"{{'password': 'three words {SECRET}'}}"],
        [f'--config={{"a": {{"token": "three words {SECRET}"}}}}'],
        [f'{{"env": "{{\\"db_password\\": \\"three words {SECRET}\\"}}"}}'],
        ["https://hooks.slack.com/services/T01/B02/12345abcdeSECRET"],
        ["bash", "-c", f"login {SECRET}"],
        ["bash", f"-clogin {SECRET}"],
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["python", "-c", SECRET],
        ["python", f"-c{SECRET}"],
        ["/usr/bin/python3.11", "-u", "-X", "dev", f"-Ic{SECRET}"],
        ["python", "-uc", SECRET, "more"],
        ["python", "-m", "torch.distributed.run", "--no-python", "bash", "-c", SECRET],
        ["srun", "sh", f"-ec{SECRET}"],
    ],
)
def test_code_is_not_shown(arguments) -> None:
    """The code of an interpreter is left out, attached to its option or not, with flags before it."""
    shown = command_line(arguments, {})
    assert SECRET not in " ".join(shown)
    assert MASK in shown[-1]
    assert shown[0] == arguments[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["python", "train.py", "-c", "config.yaml"],
        ["python", "train.py", "-config=fast"],
        ["python", "-m", "train", "-c", "config.yaml"],
        ["notify", "-config", "x", "--passes", "3", "--n-pass", "2", "--signal", "USR1"],
        ["python", "train.py", '{"lr": "a b", "keys": ["a", "b"]}'],
    ],
)
def test_options_that_look_like_code(arguments) -> None:
    """An option `-c` of a script, and names that only look like secrets, are shown."""
    assert command_line(arguments, {}) == arguments


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
