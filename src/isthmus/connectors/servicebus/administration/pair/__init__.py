"""One member of a pair: the requests of pairing to a namespace."""
