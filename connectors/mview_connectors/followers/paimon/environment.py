"""The side environment: pypaimon with the versions that its authors allow, apart from ours.

pypaimon wants an older pyarrow than mview has, and others. So it lives in an environment of its
own, with locked versions and digests, and runs in a process of its own.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from mview_connectors.followers.environments import SideEnvironment, run

_LOCK = Path(__file__).with_name("requirements.lock")

_HINT = (
    "Debian, Ubuntu: apt-get install python3-venv; it needs Python 3.10 to 3.13 and a package index"
)


def _build(folder: Path) -> None:
    step = partial(run, "Paimon", _HINT)
    python = str(folder / "bin" / "python")
    step(sys.executable, "-m", "venv", str(folder))
    step(
        *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary", ":all:", "--require-hashes", "--requirement", str(_LOCK)),
    )
    step(python, "-I", "-c", "import pypaimon")


ENVIRONMENT = SideEnvironment(
    name="Paimon",
    tag=f"{sys.version_info.major}.{sys.version_info.minor}",
    sources=(_LOCK,),
    module="mview_connectors.followers.paimon",
    build=_build,
)


def interpreter() -> Path:
    """The Python that has pypaimon.

    Raises:
        ConfigError: the environment has not been made.
    """
    return ENVIRONMENT.made() / "bin" / "python"
