"""The proof: measuring and breaking things on purpose."""
