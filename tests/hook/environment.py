"""Makes the environment in which the hook is tested against SGLang's released packages: torch for CPU, and each release by itself.

    python3.11 tests/hook/environment.py FOLDER [OURS]   ->  FOLDER/venv, FOLDER/sglang/RELEASE; prints what to set and run

Installed with pip alone: torch first, then what the releases import without asking whether it is there, pinned, then each release into a
folder of its own without its dependencies (they name GPU builds), and OURS, what pip is to install of this project ("SOURCE[test]").
torchvision is the one named stub (stubs/). Invariant: the list below is all; a test asserts which modules of SGLang were really imported.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
UNGUARDED = (
    "triton==3.9.0",
    "aiohttp==3.14.5",
    "apache-tvm-ffi==0.1.15.post2",
    "dill==0.4.1",
    "httpx==0.28.1",
    "ipython==9.18.1",
    "msgspec==0.23.0",
    "numpy==2.4.6",
    "openai==3.57.0",
    "orjson==3.13.0",
    "partial-json-parser==0.2.1.1.post7",
    "pillow==13.0.0",
    "psutil==7.2.2",
    "pybase64==1.5.1",
    "pydantic==2.14.4",
    "pyzmq==27.3.0",
    "requests==2.34.2",
    "regex==2026.11.19",
    "safetensors==0.8.0",
    "sentencepiece==0.2.3",
    "setproctitle==1.3.8",
    "starlette==1.10.0",
    "tqdm==4.70.1",
)
# Each release with the transformers that it asks for: no two of them agree on one.
RELEASES = {
    "0.5.9": ("transformers==4.57.1", "huggingface_hub==0.36.0", "tokenizers==0.22.1"),
    "0.5.11": ("transformers==5.6.0", "huggingface_hub==1.5.0", "tokenizers==0.22.2"),
    "0.5.23": ("transformers==5.19.0", "huggingface_hub==2.4.0", "tokenizers==0.23.3"),
}


def build(folder: Path, ours: str = "") -> Path:
    """The environment's Python. A folder that is there already is completed."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*install, TORCH], check=True)
    subprocess.run([*install, *UNGUARDED], check=True)
    if ours:
        subprocess.run([*install, ours], check=True)
    for release, beside in RELEASES.items():
        target = folder / "sglang" / release
        if not (target / "sglang").is_dir():
            subprocess.run([*install, "--no-deps", "--target", str(target), f"sglang=={release}", *beside], check=True)
    return python


def main(folder: str, ours: str = "") -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}: the pinned set is for 3.11")
    where = Path(folder).resolve()
    python = build(where, ours)
    print(f"SGLANG_PROBE_RELEASES={where / 'sglang'} {python} -m pytest tests/hook")


if __name__ == "__main__":
    main(*sys.argv[1:])
