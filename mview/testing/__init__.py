"""What authors of connectors test with: subclass `FollowerContract` in a file of tests."""

from mview.failpoints import FaultError
from mview.testing.contract import FollowerContract, FollowerHarness
from mview.testing.faults import Faulty
from mview.testing.view import MemoryView

__all__ = ["FaultError", "Faulty", "FollowerContract", "FollowerHarness", "MemoryView"]
