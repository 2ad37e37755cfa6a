"""Explains a booking or a seat in sentences, from the database or from a service."""
