"""mview_connectors."""
