"""The wire: the one place that turns protobuf into frozen dataclasses and back.

Everything above this package speaks `wire.messages` and `wire.service`; nothing above it imports
generated code. Both ends of every call satisfy the same Protocol, `InferenceService`, so a node, a
gateway, an engine and a test double can stand in each other's place.

Must not know: routers, models, releases, processes.
"""
