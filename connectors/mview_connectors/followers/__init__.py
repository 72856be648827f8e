"""Sinks that follow a view: where its changes go beside the store."""
