"""What is remembered of files: rows that were just written are read again soon."""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


_Content = TypeVar("_Content", bound=_Sized)


class Recent(Generic[_Content]):
    """Contents of files by path, up to a limit of bytes; the oldest go first.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, tuple[_Content, int]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._kept

    def get(self, path: str) -> _Content | None:
        """What is remembered of a file; None: nothing."""
        kept = self._kept.get(path)
        return None if kept is None else kept[0]

    def add(self, path: str, content: _Content) -> None:
        """Remember a file, over the limit until `forget`."""
        self._kept[path] = content, content.nbytes

    def forget(self, live: Container[str]) -> None:
        """Forget files that are gone, and the oldest beyond the limit."""
        self._kept = {path: kept for path, kept in self._kept.items() if path in live}
        size = sum(nbytes for _, nbytes in self._kept.values())
        for path in list(self._kept):
            if size <= self._limit:
                break
            size -= self._kept.pop(path)[1]
