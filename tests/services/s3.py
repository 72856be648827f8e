"""An S3 server that is moto's: in a process of its own, with buckets in memory."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

from tests.services.process import ServerProcess, free_port

ACCESS_KEY, SECRET, REGION = "testing", "testing-secret", "us-east-1"

_SECRET_VARIABLE = "MVIEW_TEST_S3_SECRET"
SECRET_REFERENCE = f"${{env:{_SECRET_VARIABLE}}}"

#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class S3Server:
    """A running server.

    Attributes:
        bucket: a bucket that is there.
    """

    def __init__(self, folder: Path) -> None:
        port, self.bucket = free_port(), "lake"
        self.url = f"http://127.0.0.1:{port}"
        program = Path(sys.executable).with_name("moto_server")
        command = [program, "-H", "127.0.0.1", "-p", f"{port}"]
        self._process = ServerProcess("moto", command, folder / "moto.log")
        self._process.wait_until_ready(self._make_bucket)
        os.environ[_SECRET_VARIABLE] = SECRET

    def _make_bucket(self) -> bool:
        request = urllib.request.Request(f"{self.url}/{self.bucket}", method="PUT")
        with _OPENER.open(request, timeout=5) as answer:
            return bool(answer.status == 200)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def place(self, folder: str) -> str:
        """The URL of a folder."""
        return f"s3://{self.bucket}/{folder}"

    def options(self, *, plain: bool = False) -> dict[str, str]:
        """What Rust's object stores need to reach it; the secret by reference, unless plain."""
        return {
            "aws_endpoint_url": self.url,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET if plain else SECRET_REFERENCE,
            "aws_region": REGION,
            "allow_http": "true",
        }

    def properties(self, *, plain: bool = False) -> dict[str, str]:
        """The same as pyiceberg names it."""
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET if plain else SECRET_REFERENCE,
            "s3.region": REGION,
        }

    def stop(self) -> None:
        """End it."""
        self._process.kill()
