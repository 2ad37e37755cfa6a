"""What became of a booking or a seat, as sentences."""
