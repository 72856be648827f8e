from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mview.failpoints import FAILPOINTS, armed, failpoint
from tests.chaos.points import POINTS as SCENES_OF
from tests.epoch.walk import POINTS
from tests.patience import wait_for

ROOT = Path(__file__).parents[2]

#: A process with a child named java and another one, which comes by a fail point twice.
PROGRAM = """
import os, subprocess, sys, time
from mview.failpoints import failpoint
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
children = [subprocess.Popen([program, "60"], **quiet) for program in (sys.argv[1], "sleep")]
print(*(child.pid for child in children), flush=True)
failpoint("after-sink")
print("first", flush=True)
failpoint("after-sink")
print("second", flush=True)
time.sleep(0.2)
print(*(child.poll() for child in children), flush=True)
for child in children:
    child.kill()
"""

#: A driver with a child named java, and a worker that comes by a fail point.
DRIVER = """
import subprocess, sys, time
import mview.failpoints
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
java = subprocess.Popen([sys.argv[1], "60"], **quiet)
print(java.pid, flush=True)
come_by = "from mview.failpoints import failpoint; failpoint('in-chunk')"
worker = subprocess.run([sys.executable, "-c", come_by])
print(worker.returncode, java.wait(), flush=True)
"""


def test_every_place_has_a_name_and_every_name_a_place() -> None:
    files = [*(ROOT / "mview").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    place = re.compile(r'(?:failpoint\(|behind=)"([\w-]+)"')
    used = {name for file in files for name in place.findall(file.read_text())}
    assert used == set(FAILPOINTS)
    assert used == set(SCENES_OF)  # and every place a way to come by it
    assert {name for points in POINTS.values() for name in points} <= used


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(ValueError, match="there is no fail point 'after-sunk'"):
        armed("after-sunk", lambda: None).__enter__()
    result = run("after-sunk", "sleep", Path(os.devnull))
    assert "there is no fail point 'after-sunk'" in result.stderr


def test_only_the_asked_hit_counts() -> None:
    done: list[int] = []
    with armed("after-sink", lambda: done.append(1), nth=2) as hit:
        failpoint("after-sink")
        failpoint("before-sink")
        assert not hit.is_set()
        for _ in range(3):
            failpoint("after-sink")
    failpoint("after-sink")
    assert done == [1]


def test_a_place_behind_another_one(tmp_path: Path) -> None:
    result = run("before-sink>after-sink", "sleep", tmp_path / "hit")
    assert result.stdout.splitlines()[1:] == ["first", "second", "None None"]
    assert not (tmp_path / "hit").exists()
    result = run("after-sink>after-sink", "sleep", tmp_path / "hit")
    assert (result.returncode, result.stdout.splitlines()[1:]) == (-signal.SIGKILL, ["first"])


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A program that is called java and does nothing for a while."""
    program = tmp_path / "java"
    program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    program.chmod(0o700)
    return program


def run(
    fault: str, program: Path | str, note: Path, script: str = PROGRAM
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MVIEW_FAILPOINT": fault, "MVIEW_FAILPOINT_HIT": str(note)}
    command = [sys.executable, "-c", script, str(program)]
    return subprocess.run(command, env=env, text=True, capture_output=True, cwd=ROOT)


def alive(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_for_the_end_of(pids: list[str]) -> None:
    assert wait_for(lambda: not any(map(alive, pids)), 20), "children live on"


def test_the_faults(tmp_path: Path, java: Path) -> None:
    note = tmp_path / "hit"
    result = run("after-sink:2", java, note)
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[1:]) == (-signal.SIGKILL, ["first"])
    assert note.exists()
    children = lines[0].split()
    assert all(map(alive, children))
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)

    result = run("after-sink:2=kill-tree", java, note)
    assert result.returncode == -signal.SIGKILL
    wait_for_the_end_of(result.stdout.splitlines()[0].split())

    result = run("after-sink:2=kill-jvm", java, note)
    lines = result.stdout.splitlines()
    assert lines[1:] == ["first", "second", f"{-signal.SIGKILL} None"]
    assert note.read_text() == lines[0].split()[0]  # which Java it was

    result = run("after-sink:2=raise", java, note)
    assert result.stdout.splitlines()[1:] == ["first"]
    assert "FaultError: a fault on purpose" in result.stderr
    for pid in result.stdout.splitlines()[0].split():
        os.kill(int(pid), signal.SIGKILL)


def test_what_a_worker_meets_is_done_to_all_of_its_driver(tmp_path: Path, java: Path) -> None:
    result = run("in-chunk=kill-jvm", java, tmp_path / "hit", DRIVER)
    assert result.stdout.splitlines()[1:] == [f"0 {-signal.SIGKILL}"]
    result = run("in-chunk=kill-tree", java, tmp_path / "hit", DRIVER)
    assert result.returncode == -signal.SIGKILL
    wait_for_the_end_of(result.stdout.splitlines()[:1])


def test_a_pause_ends_when_its_file_is_there(tmp_path: Path) -> None:
    note, go = tmp_path / "hit", tmp_path / "go"
    env = {
        **os.environ,
        "MVIEW_FAILPOINT": f"after-sink=pause:{go}",
        "MVIEW_FAILPOINT_HIT": str(note),
    }
    command = [sys.executable, "-c", PROGRAM, "sleep"]
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, cwd=ROOT) as paused:
        assert wait_for(note.exists, 60)
        go.touch()
        output, _ = paused.communicate()
    assert output.splitlines()[1:] == ["first", "second", "None None"]
