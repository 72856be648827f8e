"""Views in light mode: which can be, how far their sinks are, what these follow."""
