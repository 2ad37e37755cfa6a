"""The money: the gateways behind the port of `earmark.engine.ports.gateway`."""
