"""Every reason code of the compiler is explained in docs/reasons.md, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_reason_codes_are_documented() -> None:
    sources = [*(ROOT / "mview/plan").rglob("*.py"), *(ROOT / "mview/ivm").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    raised = set(re.findall(r'(?:Unsupported|Note)\(\s*"([A-Z_]+)"', text))
    raised |= set(re.findall(r'Refusal\(\s*"([A-Z_]+)"', text))
    raised |= set(re.findall(r'\(([A-Z_]+)\)"', text))
    assert "TIME_DEPENDENT" in raised
    listed = re.findall(r"^\| ([A-Z_]+) \|", (ROOT / "docs/reasons.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(raised)
