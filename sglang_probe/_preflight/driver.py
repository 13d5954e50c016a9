"""Phase `driver`: versions of NVIDIA's kernel module, of its library, and of the newest CUDA that it runs.

Invariant: what the kernel's files tell is told first: they answer where the driver hangs.
"""

from __future__ import annotations

import re

from .devices import PROC, driver_missing
from .inside import Known, Report

_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")


def ask(report: Report, known: Known) -> str:
    module = ""
    try:
        text = (PROC / "version").read_text(errors="replace")
    except OSError:
        report.fact("module", None)
    else:
        found = _VERSION.search(text)
        module = found[1] if found else text.splitlines()[0]
        report.fact("module", module)
        report.fact("module_kind", "open" if "Open Kernel" in text else "proprietary")
    report.doing("asking the driver through nvidia-ml-py")
    from .._measure.gpus import Gpus

    gpus = Gpus()
    described = {"driver": gpus._driver(), "cuda": gpus._cuda()}  # not describe(), which asks much more of a driver that may hang
    gpus.close()
    for name, version in described.items():
        report.fact(name, version or None)
    if not described["driver"]:
        if driver_missing():
            report.skip("no NVIDIA driver here")
        report.fact("why", gpus.why)
        if "mismatch" in gpus.why.lower():
            report.finding(
                f"kernel module {module}, and another version of its library: a driver was updated, reboot ({gpus.why})"
            )
        elif gpus.why.startswith("nvidia-ml-py"):
            report.note(f"{gpus.why}: links, clocks, temperatures and errors are not known without it (pip install nvidia-ml-py)")
        else:
            report.finding(f"kernel module {module} is loaded, and {gpus.why}")
        return f"{f'kernel module {module}' if module else 'no kernel module'}; {gpus.why}"
    if module and module != described["driver"]:
        report.finding(f"kernel module {module}, and its library is {described['driver']}: a driver was updated, reboot")
    return f"driver {described['driver']}, CUDA up to {described['cuda'] or 'not told'}"
