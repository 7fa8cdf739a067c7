"""Which layers go to which device. Pure."""
