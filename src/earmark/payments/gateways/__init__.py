"""Payment gateways: one package per product, each an implementation of the port in `earmark.engine.ports.gateway`."""
