"""KServe's Open Inference Protocol v2, between its messages and frozen dataclasses.

`tensors` knows datatypes, shapes and raw bytes, `messages` what travels, `convert` the protobuf,
`server` serves an `OpenInference` over gRPC. Must not know: what the tensors mean.
"""
