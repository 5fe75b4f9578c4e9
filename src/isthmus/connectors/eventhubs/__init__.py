"""Azure Event Hubs: a source and a target on the ports of the bridge, its options, its checkpoints, its mapping, its administration."""
