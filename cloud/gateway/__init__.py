"""The gateway: the cloud's stateless door. Any number of replicas may stand side by side. No torch in here.

It checks a request, admits it, picks an engine host, passes the answer through and adds its share of
the timings. What it remembers (load of hosts, answers by idempotency key) it can lose at any time.

Must not know: how a model is run, rank processes, the edge.
"""
