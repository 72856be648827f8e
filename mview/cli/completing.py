"""What a shell offers for arguments: files, and names that the store has."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def files(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Files and folders: the shell knows them."""
    return [CompletionItem(begun, type="file")]


def names(*, views: bool = False, tables: bool = False) -> Completer:
    """Names of the store's views, tables, or both. No database is asked."""

    def complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        # Whatever is wrong, a command says it; a shell that completes says nothing.
        try:
            stored = _stored(ctx, views, tables)
        except Exception:
            return []
        return [CompletionItem(name) for name in stored if name.startswith(begun)]

    return complete


def _stored(ctx: click.Context, views: bool, tables: bool) -> list[str]:
    from mview.cli.options import App, default_config
    from mview.store.history import ManifestLog
    from mview.store.layout import Store

    config = ctx.ensure_object(App).config(ctx.params.get("config_path") or default_config())
    manifest = ManifestLog(Store(config.store).manifests).latest()
    if manifest is None:
        return []
    there = [*manifest.views] if views else []
    return sorted([*there, *map(str, manifest.source_tables)] if tables else there)
