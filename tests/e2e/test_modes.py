"""What a run leaves on the disk, and who may read it, by the umask of its user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.long]


def readable(folder: Path) -> dict[str, str]:
    """What others may do something with in a folder, and with the folder."""
    modes = {one: one.lstat().st_mode & 0o777 for one in (folder, *folder.rglob("*"))}
    return {str(one): f"{mode:03o}" for one, mode in modes.items() if mode & 0o077}


def test_nobody_else_reads_the_store_whatever_the_umask(tmp_path: Path) -> None:
    shop = Shop(tmp_path, size=24)
    shop.config()
    views = tmp_path / "views"
    views.mkdir()
    (views / "inside.sql").write_text("select id, name from shop.customers")
    (views / "outside.sql").write_text(
        "create materialized view outside with (path = 'out/v') as"
        " select product, sum(amount) as total from shop.lines group by product"
    )
    command = [sys.executable, "-c", "from mview.cli import main; main()", "run", "views",
               "-c", "mview.yml", "--once"]  # fmt: skip
    for number, umask in enumerate((0o000, 0o022)):
        shop.insert("customers", {"id": 900 + number, "name": "n", "segment": None})
        shop.insert("products", {"code": f"new {number}", "price": "1.00"})
        shop.insert("lines", {"order_id": 900, "line": number, "product": "new", "amount": "1.00"})
        ended = subprocess.run(
            command, cwd=tmp_path, umask=umask, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        store = tmp_path / "store"
        for name in ("tables", "views/inside/data", "manifest", "logs", "checkpoints", "lease"):
            assert list((store / name).iterdir()), name
        assert readable(store) == {}
        out = tmp_path / "out" / "v"
        table = DeltaTable(out)
        log = sorted((out / "_delta_log").glob("*.json"))
        assert len(log) > number
        for file in (*map(Path, table.file_uris()), *log):
            assert file.stat().st_mode & 0o777 == 0o644, file
        for folder in (out.parent, out, out / "_delta_log"):
            assert folder.stat().st_mode & 0o777 == 0o777, folder
    shop.close()
