"""The engine host: one model on one group of ranks, behind gRPC of its own. No torch in here.

It keeps the ranks alive, tells a hung group from a slow one, admits no more requests than the batch
and its queue hold, and passes answers through. While its group is down it says so at once instead of
letting requests wait.

Must not know: the gateway, releases of the edge, how a model is run.
"""
