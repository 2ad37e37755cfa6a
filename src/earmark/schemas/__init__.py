"""The words that the library, the client and the API share: what may be asked, what comes back, what is refused."""
