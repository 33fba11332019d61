"""ONNX Runtime over a release: one session, a pool of KV rows, steps, and the choice of tokens.

The graph's contract: inputs input_ids int64[B,S], seqlens_k int32[B] (total length - 1), total_seq
int32, logits_idx int64[B,T,1], past_key_values.{i}.key/.value float32[B,HKV,P,HD]; outputs logits
float32[B,T,V] and present.{i}.key/.value, bound to the very buffers of the past. Serving asks for one
position a row (T = 1), which is all that releases built before T was left open can do.

Must not know: requests, tiers, transports.
"""
