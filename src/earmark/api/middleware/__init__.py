"""What is done around every request: log, rate limits, deadlines, reading the body."""
