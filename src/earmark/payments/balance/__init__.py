"""Paying from accounts that the shop itself keeps: credit and gift cards."""
