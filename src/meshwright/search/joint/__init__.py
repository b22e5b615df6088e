"""All four decisions together: algebra, split, placement, reduction program. Enters: a `Question`.
Leaves: a `Planned`.
"""
