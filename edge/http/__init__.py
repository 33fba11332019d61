"""The OpenAI-compatible HTTP face of an edge node.

Turns `/v1/chat/completions` into a GenerateRequest for any InferenceService and its events into
OpenAI's JSON. Must not know: routing, the engine, gRPC.
"""
