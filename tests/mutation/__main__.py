"""Do the tests notice faults? `make mutants`, or `python -m tests.mutation [WORD…]`.

The tests that need neither Spark nor servers are collected once, and run once to see which of them
come to the place of which mutant. Then each mutant is put into a fork of this process, where the
tests that come to its place run, the quickest first, until one fails. One that no test notices
survives, and is printed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.mutation.faults import Mutant
from tests.mutation.mutants import MUTANTS
from tests.mutation.trial import Outcome, Trials, in_a_copy

#: Share that must be killed.
_GOAL = 0.95

#: Where the tests are that may notice a fault, by what its file begins with.
_TESTS = {
    "mview/merge/": ["tests/merge"],
    "tests/models/": ["tests/models"],
    "mview/rows/": ["tests/rows", "tests/merge", "tests/store"],
    "mview/ivm/": ["tests/ivm", "tests/execute"],
    "mview/execute/": ["tests/ivm", "tests/execute"],
    "mview/follow/": ["tests/follow"],
    "mview/store/requests/paused.py": ["tests/ingest", "tests/cli"],
    "mview/store/requests/applies.py": ["tests/cli", "tests/store"],
    "mview/store/requests/log.py": ["tests/cli", "tests/store"],
    "mview/store/failure.py": ["tests/cli"],
    "mview/store/identity.py": ["tests/epoch", "tests/catalog", "tests/store"],
    "mview/store/": ["tests/store", "tests/delta"],
    "mview/plan/": ["tests/plan"],
    "mview/files/jsonfile.py": ["tests/store"],
    "mview/files/records.py": ["tests/store"],
    "mview/files/": ["tests/files", "tests/catalog", "tests/store", "tests/delta", "tests/epoch"],
    "mview/delta/": ["tests/delta", "tests/store", "tests/epoch"],
    "mview/ingest/": ["tests/ingest", "tests/epoch"],
    "mview/": ["tests/epoch", "tests/store", "tests/delta"],
}


def main(words: list[str]) -> int:
    """Run the mutants whose file or text has one of the words; all without any."""
    chosen = [one for one in MUTANTS if not words or any(word in str(one) for word in words)]
    trials = Trials([one for one in chosen if not one.test], _print)
    options = ["-q", "-s", "-p", "no:cacheprovider"]
    options += ["-m", "not spark and not service and (days or not long)"]  # on any day the same
    pytest.main([*options, *folders(chosen)], plugins=[trials])
    outcomes = list(trials.outcomes)
    for mutant in (one for one in chosen if one.test):
        outcomes.append(in_a_copy(mutant))
        _print(outcomes[-1])
    return _told(outcomes, len(chosen))


def folders(chosen: Sequence[Mutant]) -> list[str]:
    """Where tests are of the chosen files."""
    wanted = (next(_TESTS[start] for start in _TESTS if m.file.startswith(start)) for m in chosen)
    return sorted({name for names in wanted for name in names})


def _print(one: Outcome) -> None:
    print(f"{one.what:9} {one.seconds:6.1f} s  {one.mutant.place}  {one.why}", flush=True)


def _told(outcomes: list[Outcome], wanted: int) -> int:
    all_of, killed = Counter[str](), Counter[str]()
    for one in outcomes:
        room = os.path.dirname(one.mutant.file)  # noqa: PTH120
        all_of[room] += 1
        killed[room] += one.what == "killed"
        if one.what != "killed":
            print(
                f"{one.what}: {one.mutant.place}\n  - {one.mutant.before}\n  + {one.mutant.after}"
            )
    for room, count in sorted(all_of.items()):
        print(f"{room}: {killed[room]} of {count} killed")
    print(f"all: {killed.total()} of {wanted} killed")
    return int(killed.total() < _GOAL * wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
