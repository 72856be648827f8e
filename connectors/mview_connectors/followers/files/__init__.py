"""Folders of Parquet, CSV or JSON files: a step is one entry of a manifest."""
