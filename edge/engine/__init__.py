"""The engine process: weights, batching and decoding, served to the node over a unix socket.

Whatever its model's task, which edge.classifier makes use of:

    process   how the process begins; serving is what it does then; endings say why it ended
    control   who may come in; what is told and done of the engine itself
    weights   which weights are in force, and how others take their place, through a gate where there is no room
    making    what weights need of a model and of what runs it

A decoder's own:

    service   what the node sees: validates, tokenizes off the event loop, names what answered
    decoder   how a release comes to answer, and the KV memory that may be claimed
    batcher   one decode thread: admission, deadlines, callers that leave, a broken model
    figures   what that thread tells the event loop of itself: waits, memory
    lanes     the models that requests run on at once: what they take together, when one is let go
    lane      the sequences of one loaded model, in rows without holes
    model     a release, verified and loaded

Must not know: routing, upstreams, confidence, HTTP.
"""
