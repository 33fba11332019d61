"""KServe's Open Inference Protocol v2 over a node, by gRPC and REST.

`face` answers it with an InferenceService and, for classifiers, a Classifies; `generation` and
`classification` know the tensors of either task, `parameters` the parameters of a request, `versions`
whose an answer is, `rest` and `rest_body` the JSON and binary forms. Must not know: routing, the engine, protobuf.
"""
