"""Write runtime/echofn/walls/syscalls.py from this machine's kernel headers: `python3 .ci/syscalls.py`. Needs cc.

x86-64 has a header of numbers; arm64 uses the generic table with the switches of its own asm/unistd.h.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "runtime/echofn/walls/syscalls.py"
ARM64 = ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET")
NOT_CALLS = {"syscalls", "arch_specific_syscall"}  # counts and bases, not calls
HEAD = '''"""System call numbers by machine. Generated from kernel headers by .ci/syscalls.py; do not edit.

A call that is not listed is not known to the filter, which answers it with ENOSYS.
"""

from __future__ import annotations

# fmt: off
NUMBERS: dict[str, dict[str, int]] = {
'''


def numbers(header: str, *switches: str) -> dict[str, int]:
    """Name to number, as the preprocessor sees `header`."""
    source = f"#include <{header}>\n"
    flags = [f"-D__ARCH_WANT_{switch}" for switch in switches]
    seen = subprocess.run(["cc", "-E", "-dM", *flags, "-"], input=source, capture_output=True, text=True, check=True)
    macros = dict(re.findall(r"^#define (__NR\w+) (.+)$", seen.stdout, re.MULTILINE))
    found: dict[str, int] = {}
    for macro in macros:
        value = macros[macro]
        while value in macros:
            value = macros[value]
        name = macro.removeprefix("__NR_")
        if name != macro and value.isdigit() and name not in NOT_CALLS:
            found[name] = int(value)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def table(machine: str, found: dict[str, int]) -> str:
    lines, line = [], "       "
    for name, number in found.items():
        item = f' "{name}": {number},'
        if len(line) + len(item) > 118:
            lines.append(line)
            line = "       "
        line += item
    return "\n".join([f'    "{machine}": {{', *lines, line, "    },", ""])


def read(machine: str) -> dict[str, int]:
    """The numbers of a machine. The x86-64 header is there only on such a machine, or with its cross headers."""
    return numbers("asm/unistd_64.h") if machine == "x86_64" else numbers("asm-generic/unistd.h", *ARM64)


if __name__ == "__main__":
    tables = (table(machine, read(machine)) for machine in ("x86_64", "aarch64"))
    TARGET.write_text(HEAD + "".join(tables) + "}\n# fmt: on\n")
