"""The project of docs/examples works as its page says, and so does the action that checks it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from mview.admin.status import status
from mview.cli import main
from mview.config.file import load_config
from tests.cli.watch.openlineage import read_event
from tests.patience import end_of
from tests.services.dbt import run_dbt
from tests.services.process import wait_until

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
PROJECT = EXAMPLES / "project"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as somebody has copied it, with `mview` on the path."""
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    shutil.copytree(EXAMPLES / "action", folder / "action")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def commands() -> list[str]:
    """What the page says to type."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return block.splitlines()


def run(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_up_to_the_run(project: Path) -> None:
    typed = commands()
    for command in typed[: typed.index("mview run views --once")]:
        answer = run(command)
        assert answer.returncode == 0, (command, answer.stdout, answer.stderr)
    assert "1 passed, 0 failed" in answer.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_to_its_end(
    project: Path, orchestrate: ModuleType, request: pytest.FixtureRequest
) -> None:
    with (project / "mview.yml").open("a") as config:
        config.write("openlineage: {file: lineage.jsonl, every: 0}\n")
    for command in commands():
        answer = run(command)
        assert answer.returncode == 0, (command, answer.stdout, answer.stderr)
    # What the run told of each view's lineage.
    told = [json.loads(line) for line in (project / "lineage.jsonl").read_text().splitlines()]
    for view in ("order_totals", "revenue", "countries"):
        events = [read_event(event) for event in told if event["job"]["name"] == view]
        kinds = [event.eventType.value for event in events]
        assert (kinds[0], kinds[-1]) == ("START", "COMPLETE")
        assert set(kinds[1:-1]) == {"RUNNING"}
        assert events[1].run.facets["mview_epochs"]["rows"] > 0
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.search(r"Ada +GB +1 +25.00", shown.stdout), shown

    # The scheduler's functions on a store that is filled, and that nobody runs.
    assert {view["name"] for view in orchestrate.status()["views"]} == {
        "order_totals",
        "revenue",
        "countries",
    }
    assert orchestrate.not_fresh().startswith("nobody runs the store, and ")
    assert not orchestrate.is_fresh()
    with pytest.raises(TimeoutError, match="nobody runs"):
        orchestrate.wait_until_fresh(seconds=0, every=0)
    assert orchestrate.caught_up("revenue", 0)
    assert not orchestrate.caught_up("revenue", 1 << 60)
    assert not orchestrate.caught_up("nothing", 0)

    # An edited view is refused by the action, unless it is told otherwise.
    view = project / "views/marts/revenue.sql"
    view.write_text(view.read_text().replace("count(*)", "count(*) + 0"))
    assert step("Plan").returncode == 6
    assert step("Plan", rebuilds="allow").returncode == 0

    request.getfixturevalue("dbt")  # at the end: all before it was tested without it
    view.write_text(view.read_text().replace("count(*) + 0", "count(*)"))
    (project / "views/staging/order_totals.sql").unlink()
    models_of_dbt_are_views(project)


def models_of_dbt_are_views(project: Path) -> None:
    """The example of dbt, over the project's store: without a run of mview, and beside one."""
    shutil.copytree(EXAMPLES / "dbt", project, dirs_exist_ok=True)
    alone = run_dbt(project, "run", "--profiles-dir", ".", "--select", "order_totals")
    assert alone.returncode == 0, alone.stdout
    text = (project / "views/order_totals.sql").read_text()
    assert text.startswith("CREATE MATERIALIZED VIEW order_totals WITH (freshness = '1 min') AS")
    assert "FROM shop.orders o JOIN shop.lines l" in text
    with (project / "run.log").open("wb") as log:
        live = subprocess.Popen(
            ["mview", "run", "views", "-c", "mview.yml"], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: status(load_config("mview.yml")).running, "the run", 120)
        built = run_dbt(project, "build", "--profiles-dir", ".")
        assert built.returncode == 0, (built.stdout, (project / "run.log").read_text())
        assert "PASS=7 WARN=0 ERROR=0 SKIP=0" in built.stdout
        # What mview refuses fails the model, with its words; and the run goes on.
        model = project / "models/spending.sql"
        model.write_text(model.read_text().replace("t.total", "t.totl"))
        refused = run_dbt(project, "run", "--profiles-dir", ".", "--select", "spending")
        assert refused.returncode == 1
        assert "totl" in refused.stdout
        assert live.poll() is None
    finally:
        live.terminate()
        assert end_of(live, 120) is not None


@pytest.fixture
def orchestrate() -> Iterator[ModuleType]:
    sys.path.insert(0, str(PROJECT))
    import orchestrate  # type: ignore[import-not-found]

    yield orchestrate
    sys.path.remove(str(PROJECT))


@pytest.mark.long
def test_a_scheduler_is_told_what_fails(project: Path, orchestrate: ModuleType) -> None:
    assert orchestrate.status()["views"] == []
    with pytest.raises(RuntimeError, match="configuration"):
        orchestrate.status("nothing.yml")
    with pytest.raises(RuntimeError, match="configuration"):
        orchestrate.not_fresh("nothing.yml")


# --- the action ----------------------------------------------------------------------------------

ACTION = yaml.safe_load((EXAMPLES / "action/action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def step(name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does: its inputs, or their defaults, in its environment."""
    given = {key: inputs.get(key, said["default"]) for key, said in ACTION["inputs"].items()}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], text)

    assert STEPS[name]["shell"] == "bash"
    return run(STEPS[name]["run"], **{k: filled(v) for k, v in STEPS[name]["env"].items()})


@pytest.fixture
def shop(project: Path) -> Path:
    assert run("python shop.py && mview init sqlite:///shop.db --triggers").returncode == 0
    return project


@pytest.mark.long
def test_the_steps_of_the_action(shop: Path) -> None:
    assert [*STEPS] == ["Check", "Test", "Plan"]
    for name in STEPS:
        done = step(name)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
    assert "new       view countries" in done.stdout


@pytest.mark.long
def test_what_is_wrong_ends_the_action(shop: Path) -> None:
    # Inputs come from whoever opens a pull request: they are data of the environment.
    assert "${{" not in "".join(said["run"] for said in STEPS.values())
    assert step("Test", tests="x; touch owned").returncode != 0
    assert not (shop / "owned").exists()
    tests = shop / "tests/revenue.yml"
    tests.write_text(tests.read_text().replace("revenue: 21", "revenue: 22"))
    assert step("Test").returncode == 1
    view = shop / "views/staging/order_totals.sql"
    view.write_text(view.read_text().replace("l.quantity", "l.quantiti"))
    failed = step("Check")
    assert failed.returncode == 1
    assert "quantiti" in failed.stdout
    assert step("Plan").returncode != 0


def test_the_job_uses_the_action() -> None:
    job = yaml.safe_load((PROJECT / ".github/workflows/views.yml").read_text())["jobs"]["views"]
    (used,) = (step for step in job["steps"] if step.get("uses", "").startswith("./"))
    assert used["uses"] == "./action"
    assert used["with"].keys() <= ACTION["inputs"].keys()
    for said in job["steps"]:
        if command := said.get("run"):
            assert command.split()[0] in ("pip", "python")


# --- the image -----------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, without comments, lines joined."""
    text = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line]


def test_the_image_is_written_with_care() -> None:
    """It is not built here: its instructions are read."""
    told = instructions()
    names = [name for name, _ in told]
    assert set(names) <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "ENTRYPOINT", "CMD"}
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", told[0][1])
    assert dict(told)["USER"] != "root"
    assert names.index("USER") < names.index("ENTRYPOINT")
    copied = [
        word
        for name, text in told
        if name == "COPY" and "*" not in text
        for word in shlex.split(re.sub(r"--\S+", "", text))[:-1]
    ]
    assert copied
    assert all((PROJECT / name).exists() for name in copied)


def test_the_command_of_the_image_is_one() -> None:
    told = dict(instructions())
    entry, arguments = json.loads(told["ENTRYPOINT"]), json.loads(told["CMD"])
    assert entry == ["mview"]
    main.commands[arguments[0]].make_context(
        arguments[0], arguments[1:], parent=click.Context(main)
    )


def test_the_shop_begins_anew(project: Path) -> None:
    for _ in range(2):
        assert run("python shop.py").returncode == 0
        with closing(sqlite3.connect(project / "shop.db")) as shop:
            assert shop.execute("SELECT count(*) FROM orders").fetchone() == (3,)
