"""Stateful stand-ins for the Protocols of wire.service; never a patch."""
