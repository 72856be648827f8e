"""What doubles of Kafka's client have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mview_connectors.changelogs.kafka.client import Reached, Span

from mview.connector import Message


class KeepsNothing:
    """A client that reads each message when it is asked for, and keeps none."""

    def read(self, spans: Sequence[Span], *, last: bool = False) -> Iterable[Message]:
        """The messages of spans."""
        raise NotImplementedError

    def reach(self, spans: Sequence[Span], most: int) -> dict[str, Reached]:
        """How far so many bytes reach in each span, one message at least."""
        return {span.partition: self._reach(span, most) for span in spans}

    def _reach(self, span: Span, most: int) -> Reached:
        size = 0
        for message in self.read([span]):
            more = len(message.value or b"")
            if size and size + more > most:
                return Reached(message.offset, size, 1_000)
            size += more
        return Reached(span.end, size, 1_000)

    def kept_before(self, partition: str, end: int) -> Iterator[Message]:
        """No messages."""
        return iter(())

    def forget(self) -> None:
        """There is nothing."""

    def settings_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Those that topics have by default."""
        return {topic: {"cleanup.policy": "delete"} for topic in topics}
