"""From databases and changelogs to batches of rows: loading in chunks, following the changes."""
