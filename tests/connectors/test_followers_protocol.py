"""Every registered sink has the methods of the protocol, as they are called."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import Any

import pytest

from mview.follower import Follower, FollowerSettings


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(one.name, one.kind) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", sorted(one.name for one in entry_points(group="mview.followers")))
def test_a_registered_sink_is_a_follower(name: str) -> None:
    (found,) = entry_points(group="mview.followers", name=name)
    factory = found.load()
    assert issubclass(factory.settings, FollowerSettings)
    assert factory.capabilities.modes
    methods = [n for n, one in vars(Follower).items() if inspect.isfunction(one) and n[0] != "_"]
    assert {"stage", "commit", "maintain"} <= set(methods)
    for method in methods:
        ours = parameters(getattr(factory, method))
        assert ours == parameters(getattr(Follower, method)), method
