"""What the receivers of two namespaces are made of: pure machines (`merge`, `failover`), and one thread for each namespace (`branch`)."""
