"""Meshwright."""
from meshwright.cluster.model import Cluster
