"""What people ask of a run, as files of the store: they are written, taken and answered."""
