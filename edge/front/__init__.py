"""The front process: gRPC and HTTP in one event loop, over the cascade of engine and upstream.

It holds no weights and imports no model runtime, so that it stays up while the engine is replaced.
"""
