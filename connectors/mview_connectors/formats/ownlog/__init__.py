"""Formats of databases' own logs."""
