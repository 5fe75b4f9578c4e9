"""HTTP as a kind of system: requests to any server that accepts them, and a listener for clients that send them (docs/how-to/use-http.md)."""
