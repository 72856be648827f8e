"""What authors of connectors test with: subclass a contract in a file of tests."""

from mview.failpoints import FaultError
from mview.testing.contract import FollowerContract, FollowerHarness
from mview.testing.faults import Faulty
from mview.testing.formats import FormatContract, FormatHarness, RowChange
from mview.testing.view import MemoryView

__all__ = [
    "FaultError",
    "Faulty",
    "FollowerContract",
    "FollowerHarness",
    "FormatContract",
    "FormatHarness",
    "MemoryView",
    "RowChange",
]
