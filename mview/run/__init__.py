"""`mview run`: from view definitions to published epochs, until stopped."""
