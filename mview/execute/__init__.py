"""An epoch of a view, computed: one program, two executors that must agree."""
