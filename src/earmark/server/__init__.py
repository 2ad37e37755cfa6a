"""Running the HTTP server: one process or several, start and shutdown."""
