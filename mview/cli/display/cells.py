"""Values of rows, as tables for people have them."""

from __future__ import annotations


def cell(value: object) -> str:
    """A value of a row as a table for people has it: texts as they are, nested ones in brackets.

    >>> from decimal import Decimal
    >>> print(cell(None), cell(True), cell(b"\\x0a"), cell([Decimal("1.50"), None, {"a": "x"}]))
    NULL true 0a [1.50, NULL, {a: x}]
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(cell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{cell(name)}: {cell(part)}' for name, part in value.items())}}}"
    return str(value)
