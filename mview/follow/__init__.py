"""Sinks that follow views: cursors, steps, recovery, what waits for them in the store."""
