"""The decision core: where a request is answered, at which precision, and why.

Pure: no sockets, no clock, no randomness of its own. Time and uniforms are passed in. Plain
dataclasses in, a decision out; equal inputs give equal decisions.

Must not know: wire, releases, gRPC, asyncio, model runtimes.
"""
