"""What a client's connection is made of: its links, what they are attached to, what it has shown, and how far it is read."""
