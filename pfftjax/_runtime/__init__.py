"""What every operation stands on: options, MPI, communicators, order, and how primitives are made.

Public inside the package, and to nobody else.
"""
