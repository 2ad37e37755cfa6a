"""The live stream under load: how long after a commit all readers have seen it, and what that costs the server."""
