"""The live stream under load: how long after a commit everybody has seen it, and what that costs the server."""
