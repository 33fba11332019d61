"""Fetches releases and puts them in force: signed catalogue, verified chunks, slots, a share of the link.

It runs in the front process, beside the servers, and takes nothing from them: the network is
asynchronous, the disk is written in threads, and whatever fails here leaves what serves as it is.
"""
