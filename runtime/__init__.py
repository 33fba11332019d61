"""What every process that serves or measures a model stands on.

`runtime.config` reads settings and says where each came from; `runtime.child` keeps groups of
processes alive; `runtime.text` streams text out of tokens; `runtime.tokenizer` turns chats into
tokens; `runtime.ort` runs a release on ONNX Runtime. The last two are for the edge and for quantize,
which may not import each other.

Must not know: tiers, routing, gRPC.
"""
