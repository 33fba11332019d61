"""How an engine process tells its launcher why it ended: by its exit code, and by a reason beside its socket."""

from __future__ import annotations

UNUSABLE = 69
SHORT = 75  # of memory: no fault of the release, so it is worth another try
BROKEN = 70
REASON_NAME = "engine.reason"  # why it could not serve, in its own words
