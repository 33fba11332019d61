"""`weir bench transfer`: what nested weights are worth on the way to a node, on recorded links."""
