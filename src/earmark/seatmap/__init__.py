"""The seat map as buyers see it: a cache of whole maps, and a live stream of changes to every follower."""
