"""Stand in for SGLang's kernels, which are built for a GPU. On a CPU machine SGLang imports names
from here and calls none of them.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is a stub: this environment has no kernels of SGLang")

    return absent
