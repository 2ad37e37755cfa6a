"""The payment saga: opens, drives and refunds payments; `gateways` has one package for each product."""
