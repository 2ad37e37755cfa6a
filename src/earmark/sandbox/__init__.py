"""A simulated payment gateway that misbehaves on request, in process and over HTTP. It moves no money."""
