"""Ways to sell a seat once, side by side on the same tables: which of them hold, and how fast they are."""
