"""The I/O around the machines of the bridge: the loops of reader and sink, and the connections between driver, reader and sink."""
