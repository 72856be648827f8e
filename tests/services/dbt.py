"""dbt with DuckDB, for the example of it: what it is made of clashes with ours, so it is apart."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from mview_connectors.followers.environments import SideEnvironment

from tests.services.wheels import install

_LOCK = Path(__file__).with_name("dbt.lock")

ENVIRONMENT = SideEnvironment(
    name="dbt",
    tag=f"1.11-{sys.version_info.major}.{sys.version_info.minor}",
    sources=(_LOCK,),
    module="tests.services.dbt",
    build=partial(install, "dbt", _LOCK),
)

#: Only dbt's own process sees its packages, and none that it starts.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dbt.cli.main import cli; cli()"


def run_dbt(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run dbt in a project; its plugin finds `mview` on the path."""
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(ENVIRONMENT.made()), *arguments],
        cwd=project,
        env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
