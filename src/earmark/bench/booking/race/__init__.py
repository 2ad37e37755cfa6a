"""A race: many buyers at once for the same seats, strategy by strategy, counted in the database."""
