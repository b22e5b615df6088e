"""The joint search: algebra, split, placement and reduction program chosen together. Enters: a
`Question`. Leaves: a `Planned`.
"""
