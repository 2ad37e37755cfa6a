"""Payments; `gateways` has one package for each product that takes money."""
