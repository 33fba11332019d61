"""What can go wrong while the demo runs; messages say where to look."""

from __future__ import annotations


class DemoError(Exception):
    """The demo could not show what it promises."""
