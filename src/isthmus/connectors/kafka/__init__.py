"""Apache Kafka: a source and a target on the ports of the bridge, its options, its mapping, its administration."""
