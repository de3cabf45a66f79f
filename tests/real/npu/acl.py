"""Build a stand-in for CANN, the C libraries below torch_npu. With it, the real torch_npu runs on a
machine without an Ascend chip.

No part of torch_npu is replaced. The names of the C functions that it needs are read from its
libraries. Each function becomes one that logs its call and does nothing; acl.c has those that do
more. The stand-in cannot show what a device would have recorded.

    python tests/real/npu/acl.py FOLDER

builds it and prints the environment that it needs.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CANN = re.compile(r"(acl|Msprof|rt[A-Z]|hal[A-Z])\w+")
# torch_npu looks these up by name at run time, so they are in no list of undefined symbols
LOOKED_UP = [
    "aclSetCompileopt",
    "aclrtSetDeviceSatMode",
    "aclprofStop",
    "aclprofFinalize",
    "aclprofWarmup",
    "aclprofDestroyConfig",
    "aclprofCreateStepInfo",
    "aclprofDestroyStepInfo",
    "aclprofGetStepTimestamp",
    "aclprofMarkEx",
    "aclprofRegisterDeviceCallback",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeDeviceWithTimeout",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtCtxSetSysParamOpt",
    "aclrtSetOpExecuteTimeOut",
    "aclrtDestroyStreamForce",
    "aclrtQueryEventStatus",
    "aclrtStreamQuery",
    "aclrtSetStreamFailureMode",
    "aclrtPeekAtLastError",
    "halGetAPIVersion",
    "msptiSubscribe",
    "msptiUnsubscribe",
    "msptiActivityRegisterCallbacks",
    "msptiActivityEnable",
    "msptiActivityDisable",
    "msptiActivityFlushAll",
    "msptiActivityGetNextRecord",
    "msptiActivityIsEnabled",
    "msptiActivityPushExternalCorrelationId",
    "msptiActivityPopExternalCorrelationId",
]
# torch_npu requires each of these libraries of CANN
LIBRARIES = [
    "hccl",
    "acl_op_compiler",
    "ge_runner",
    "graph",
    "acl_tdt_channel",
    "msprofiler",
    "opapi",
    "ascend_hal",
    "runtime",
    "ms_tools_ext",
    "msprof",
    "ascend_dump",
    "mspti",
]


def build(folder: Path) -> dict[str, str]:
    """Compile the stand-in into `folder`. Return the environment variables with which torch_npu
    finds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = (HERE / "acl.c").read_text()
    written = set(re.findall(r"^[a-z_0-9]+ \*?\*?(\w+)\(", own, re.MULTILINE))
    written |= set(re.findall(r"^const char \*(\w+)\(", own, re.MULTILINE))
    wanted = sorted((needed() | set(LOOKED_UP)) - written)
    generated = folder / "generated.c"
    generated.write_text(
        "int stepprof_called(const char *);\n"
        + "".join(f'int {name}(void) {{ return stepprof_called("{name}"); }}\n' for name in wanted)
    )
    libraries = folder / "lib64"
    for part in ("lib64", "opp", "runtime", "compiler"):  # torch_npu checks that they exist
        (folder / part).mkdir(exist_ok=True)
    library = libraries / "libascendcl.so"
    compile_c(library, HERE / "acl.c", generated)
    for name in LIBRARIES:
        compile_c(libraries / f"lib{name}.so", "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN")
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "ASCEND_HOME_PATH": str(folder),  # where libms_tools_ext.so is searched
        "ASCEND_OPP_PATH": str(folder / "opp"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # `import torch` by itself must not need any of this
    }


def compile_c(library: Path, *arguments: str | Path) -> None:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-builtin-declaration-mismatch", f"-Wl,-soname,{library.name}"]  # fmt: skip
    subprocess.run([*command, "-o", library, *arguments], check=True)


def needed() -> set[str]:
    """Return the functions of CANN that torch_npu's libraries use and none of them defines."""
    found = importlib.util.find_spec("torch_npu")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    libraries = [*package.glob("lib/lib*.so"), *package.glob("_C*.so")]
    undefined = symbols(libraries, "--undefined-only") - symbols(libraries, "--defined-only")
    return {name for name in undefined if CANN.fullmatch(name)}


def symbols(libraries: list[Path], which: str) -> set[str]:
    done = subprocess.run(["nm", "-D", which, *libraries], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if " " in line}


if __name__ == "__main__":
    for variable, value in build(Path(sys.argv[1]).resolve()).items():
        print(f"export {variable}={value}")
