"""Holds over HTTP, end to end: Earmark's server beside the endpoint that people write, and what neither can exceed."""
