"""Sharding: op groups, layouts over mesh factors, tensor placements, resharding."""
