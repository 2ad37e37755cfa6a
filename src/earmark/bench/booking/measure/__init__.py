"""`earmark bench booking`: hold and confirm, beside what people write by hand, on one database."""
