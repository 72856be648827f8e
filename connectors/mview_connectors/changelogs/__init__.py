"""changelogs."""
