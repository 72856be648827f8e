"""Make the small shop of this project: `python shop.py`; again, it begins anew."""

import sqlite3
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Write shop.db."""
    (HERE / "shop.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(HERE / "shop.db")) as shop:
        shop.executescript((HERE / "shop.sql").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
