"""Paired comparisons of policies on identical arrivals.

`run` runs the episodes. `results` makes `comparison.json` of them, from `aggregate` (figures of one policy),
`statistics` (intervals and tests), `gates`, `references` (bounds) and `pooling` (several trainings of one agent).
`verdict` words the result of a training.
"""
