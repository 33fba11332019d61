"""One module per measured program, each run in a process of its own: see bench.edge.side."""
