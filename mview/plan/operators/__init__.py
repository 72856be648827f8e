"""The operators of a plan: their nodes (`ir`), made of a query's tree, rewritten, printed."""
