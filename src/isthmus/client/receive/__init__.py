"""The parts of the receivers of two namespaces: pure machines (`merge`, `failover`), and one thread for each namespace (`branch`)."""
