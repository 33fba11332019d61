"""`weir bench switching`: what clients notice when a node changes its precision or its release."""
