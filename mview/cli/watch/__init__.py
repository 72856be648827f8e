"""Watching a store: a page, JSON and metrics over HTTP. It reads, and changes nothing."""
