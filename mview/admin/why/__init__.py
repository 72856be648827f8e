"""Why a row of a view is as it is: the rows behind it, and the changes that last touched it."""
