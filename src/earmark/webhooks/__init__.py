"""Sending webhooks: which addresses may be called, and one signed call."""
