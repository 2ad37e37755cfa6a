"""The door: HTTP words in, one verb call, HTTP words out."""
