"""One member of a pair: everything that pairing asks of a namespace, and does there."""
