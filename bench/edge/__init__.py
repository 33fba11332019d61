"""The edge engine and the node against their peers: see bench.edge.run."""
