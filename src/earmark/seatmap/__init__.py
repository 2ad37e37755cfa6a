"""The news: what happened, told to those who follow it, and what is still to be had, worded once for all who look."""
