"""Earmark's lock beside the locks that Python programs take from Redis today, measured in one run on one server."""
