"""Tables in StarRocks: a step is one transaction of Stream Load."""
