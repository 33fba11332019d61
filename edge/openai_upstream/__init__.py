"""An OpenAI-compatible endpoint as the upstream of a node.

`client` satisfies InferenceService over HTTP; `body` writes requests in the endpoint's `dialect`, `answer` and
`logprobs` read what comes back, `events` splits a stream of server-sent events, `faults` maps errors to the
wire's tree. The endpoint is never believed: lines, events, answers and time are bounded, and what does not parse
is a broken answer.
Must not know: routing, the edge's engine.
"""
