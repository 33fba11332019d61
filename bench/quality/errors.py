"""What stands in the way of a quality measurement; the message says what to do."""

from __future__ import annotations


class MeasurementError(Exception):
    """The quality of a model cannot be measured as asked."""
