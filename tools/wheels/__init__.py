"""Builds what is released, and tries it where users would: `make wheels`."""
