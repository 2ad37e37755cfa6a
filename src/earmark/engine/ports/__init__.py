"""What the verbs need from the world: protocols that stores, gateways and others implement."""
