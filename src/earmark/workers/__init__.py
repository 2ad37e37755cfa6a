"""By itself: workers that act with nobody asking. Any number of each may run."""
