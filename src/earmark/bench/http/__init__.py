"""Holds over HTTP: Earmark's server beside a hand-written FastAPI endpoint, and the limit of the machine."""
