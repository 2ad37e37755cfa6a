"""Attacks on a real `earmark serve`: each is refused or bounded, and costs other clients no more than harmless load."""
