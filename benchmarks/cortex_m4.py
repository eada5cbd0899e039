"""Exported C on an emulated Cortex-M4: vectors, bytes, instructions a step: python -m benchmarks.cortex_m4 FOLDER."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from lqrlab.compute import checks

TOOLS = {"arm-none-eabi-gcc": "gcc-arm-none-eabi, libnewlib-arm-none-eabi", "qemu-system-arm": "qemu-system-arm"}
_TARGET = ["-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-Os", "-DCONTROLLER_FLOAT"]
_STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-Werror"]
_BOARD = ["-M", "mps2-an386", "-cpu", "cortex-m4", "-nographic", "-icount", "shift=10"]
_BOARD_FILES = Path(__file__).with_name("cortex_m4_board")
_CALLS = ["-semihosting-config", "enable=on,target=native"]


class ProcessorRun(NamedTuple):
    """A controller on a Cortex-M4 in single precision: its size, its instructions, and its answers beside those here.

    Attributes:
        code, memory: bytes of code and constants, and of what it remembers.
        least, most: instructions of a step, over 10,000 steps.
        answer: what ``main_test`` said of the test vectors.
    """

    code: int
    memory: int
    least: int
    most: int
    answer: str

    @property
    def same(self) -> bool:
        """True if every test vector was repeated."""
        return self.answer.rstrip().endswith(" 0 wrong")


def on_cortex_m4(folder: str | Path) -> ProcessorRun:
    """Compile a folder of ``deployment.to_c`` for a Cortex-M4, run it in QEMU: its test vectors, then 10,000 steps.

    QEMU counts instructions, not cycles: a step of them takes some 1 to 2 cycles each on the silicon.

    Raises:
        ValueError: no such folder.
        RuntimeError: a compiler or QEMU that is missing (with the Debian package that has it), or that failed.
    """
    folder = checks.path("folder", folder).resolve()
    if not (folder / "main_test.c").is_file():
        raise ValueError(f"folder: expected one that deployment.to_c wrote, but {folder} has no main_test.c")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise RuntimeError(f"on_cortex_m4: needs {tool}; on Debian: apt install {package}")
    with tempfile.TemporaryDirectory() as build:
        here = Path(build)
        shutil.copy(folder / "test_vectors.csv", here)
        for name in ("board.ld", "start.c", "count.c"):
            shutil.copy(_BOARD_FILES / name, here)
        (here / "memory.c").write_text('#include "controller.h"\ncontroller_t c;\n')
        compiler = ["arm-none-eabi-gcc", *_TARGET, f"-I{folder}"]
        sizes = []
        for source in (folder / "controller.c", here / "memory.c"):
            _run(here, *compiler, *_STRICT, "-c", source, "-o", "part.o")
            sizes.append(sum(map(int, _run(here, "arm-none-eabi-size", "part.o").splitlines()[1].split()[:3])))
        answers = []
        for program in (folder / "main_test.c", here / "count.c"):
            link = ["-T", "board.ld", "--specs=rdimon.specs", "-Wl,--gc-sections", "-lm", "-o", "program.elf"]
            _run(here, *compiler, "start.c", folder / "controller.c", program, *link)
            answers.append(_run(here, "qemu-system-arm", *_BOARD, *_CALLS, "-kernel", "program.elf", wrong_too=True))
    least, most = map(int, answers[1].split())
    return ProcessorRun(sizes[0], sizes[1], least, most, answers[0])


def _run(where: Path, *command: object, wrong_too: bool = False) -> str:
    done = subprocess.run(list(map(str, command)), cwd=where, capture_output=True, text=True, check=False, timeout=250)
    if done.returncode and not (wrong_too and done.stdout):
        words = next(iter(done.stderr.strip().splitlines()), "no reason given")
        raise RuntimeError(f"on_cortex_m4: {command[0]} failed: {words}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = on_cortex_m4(sys.argv[1])
    print(f"test vectors: {found.answer}{found.code} bytes of code and constants, {found.memory} of memory")
    print(f"{found.least} to {found.most} instructions a step")
