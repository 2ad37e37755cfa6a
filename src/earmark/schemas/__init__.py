"""Request, response and error schemas that the library, the client and the API share."""
