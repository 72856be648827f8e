"""The side environment: pypaimon with the versions that its authors allow, apart from ours.

pypaimon wants an older pyarrow than mview has, and others. So it lives in an environment of its
own, with locked versions and digests, and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mview.errors import ConfigError
from mview.files.modes import make_shared_folder

LOCK = Path(__file__).with_name("requirements.lock")

COMMAND = "python -m mview_connectors.followers.paimon"


def folder() -> Path:
    """Where it is: in `$MVIEW_CACHE`, else `~/.cache/mview`; another one for other versions."""
    root = os.environ.get("MVIEW_CACHE")
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    name = f"paimon-{sys.version_info.major}.{sys.version_info.minor}-{digest}"
    return (Path(root) if root else Path.home() / ".cache" / "mview") / name


def interpreter() -> Path:
    """The Python that has pypaimon.

    Raises:
        ConfigError: the environment has not been made.
    """
    python = folder() / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            "the environment for Paimon has not been made",
            where=str(folder()),
            safe="nothing was written",
            hint=f"run once: {COMMAND}",
        )
    return python


def make() -> Path:
    """Make the environment, if it is not there; returns its Python.

    Raises:
        ConfigError: it cannot be made, with what was said.
    """
    target = folder()
    if (target / "bin" / "python").exists():
        return target / "bin" / "python"
    make_shared_folder(target.parent)
    # Whole or not at all: it gets its name when it is done.
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _run(sys.executable, "-m", "venv", str(new))
        _run(
            *(str(new / "bin" / "python"), "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"),
            *("--require-hashes", "--requirement", str(LOCK)),
        )
        _run(str(new / "bin" / "python"), "-I", "-c", "import pypaimon")
        if not target.exists():
            new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target / "bin" / "python"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            "the environment for Paimon cannot be made",
            where=" ".join(command[:4]),
            got=" ".join((done.stderr or done.stdout).split())[-800:],
            hint="Debian, Ubuntu: apt-get install python3-venv; it needs Python 3.10 to 3.13 and a "
            "package index",
        )
