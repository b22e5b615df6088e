"""Meshwright plans distributed deep-learning training on hierarchical clusters.

The names below are the public interface; everything else may move.
"""

from meshwright.cluster.model import Cluster
from meshwright.place.placement import Placement, placements
from meshwright.price.step import Pricer
from meshwright.reduce.dsl import Program
from meshwright.reduce.hierarchy import Hierarchy, reduction_hierarchy
from meshwright.reduce.predict import cheapest, predict
from meshwright.reduce.synthesize import synthesize
