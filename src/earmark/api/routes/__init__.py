"""The handlers, one module for each kind of resource."""
