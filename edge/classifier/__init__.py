"""The engine process of a model that labels texts, served to the node over a unix socket like any engine.

    service   what the node sees: validates, tokenizes, names what answered
    batcher   one thread: what waits is run in batches of about one length
    job       what goes in there and what comes back
    pick      which of those that wait go together
    labels    from logits to labels and their probabilities
    model     a release, verified and loaded

Who may come in, changing weights, the gate before them and the process itself are edge.engine's. Must not know:
routing, upstreams, confidence, HTTP.
"""
