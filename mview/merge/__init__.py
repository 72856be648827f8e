"""The Global Version merge: loaded rows and newer changes of a table become one changelog."""
