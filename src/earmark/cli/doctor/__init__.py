"""A doctor's checks: each looks at one thing, says how it is, and what to do about it."""
