"""Mails to buyers: where they are sent through, what they say, and sending them."""
