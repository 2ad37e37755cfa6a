"""Tickets beside the rules and the store: new secrets, and the calendar file of a booking's page."""
