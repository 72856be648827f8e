"""Views in an epoch: opened, built, and brought up to it by their changes or as a whole."""
