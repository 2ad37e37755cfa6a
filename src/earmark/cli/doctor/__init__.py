"""The checks of `earmark doctor`: each examines one part and returns findings with advice."""
