"""HTTP as a kind of system: requests to anything that takes them, and a listener for those that send them (docs/how-to/use-http.md)."""
