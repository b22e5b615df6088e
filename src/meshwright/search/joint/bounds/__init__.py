"""What no plan can do better than. Enters: a graph, a cluster, prices. Leaves: inequalities, and
the largest lower bound that a mixture of them gives.
"""
