"""One rank of a tensor-parallel group: the only part of the cloud that imports torch.

Rank 0 serves Inference and EngineControl on a unix socket; the others follow its batches. Every rank
writes a beat, so that its parent can tell a hung process from a busy one.

`spec`, `plan` and `beat` know no torch: the engine host reads them too. Must not know: TCP, other
groups, admission, the gateway.
"""
