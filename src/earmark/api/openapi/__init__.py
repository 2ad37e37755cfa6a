"""The OpenAPI document and what is made from it."""
