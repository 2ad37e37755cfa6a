"""The rules: what a booking is and how it may move. Pure; facts in, decisions out."""
